"""``Client``: a worker of parameter servers. Pushes during backward, applies updates in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from thinwire.checks import check_positive
from thinwire.choice import choose_recipe
from thinwire.client.apply import Applying, AtOnce, Trained
from thinwire.client.early_forward import Early
from thinwire.client.push import Pushing, PushJob, ReadyGradients, check_state
from thinwire.client.servers import Connect, ServerAddresses, Servers, check_place, connect_with
from thinwire.defaults import SERVER_DEADLINE_SECONDS
from thinwire.errors import ConfigError
from thinwire.exchange.pipeline import Pipeline
from thinwire.exchange.roles import WorkerRole
from thinwire.gradient.network import (
    check_gradients,
    check_one_rate,
    check_optimizer,
    check_same_parameters,
    trained_parameters,
)
from thinwire.gradient.pieces import Key
from thinwire.gradient.steps import StepInfo
from thinwire.keys.settings import WorkerKeys
from thinwire.optim.takeover import use_momentum
from thinwire.recipe import Recipe, check_recipe
from thinwire.recipe_names import typed_recipe
from thinwire.watch.stats import ClientStats, Tally, residual_ratios


class Client:
    """Trains a network with other workers through servers, without a process group.

    Gradients are compressed and sent while backward goes on. ``step()`` waits for the next version
    of all weights, and does one optimizer step for every version that is there. So at equal
    ``version`` all workers have equal weights, whatever the optimizer.
    """

    def __init__(
        self,
        servers: Sequence[str],
        recipe: Recipe | None = None,
        *,
        rank: int,
        workers: int,
        keys: WorkerKeys | None = None,
        insecure: bool = False,
        deadline_seconds: float = SERVER_DEADLINE_SECONDS,
        report_seconds: float = 5.0,
        overlap: bool = True,
        early_forward: bool = False,
        seed: int = 0,
        force: bool = False,
        connect: Connect | None = None,
    ) -> None:
        """``servers`` are addresses such as "tcp://host:5555", the same for all workers. Without a
        ``recipe`` ``attach`` chooses the one that fits the optimizer; servers must have the same.

        With ``overlap=False`` gradients are sent by ``step()``, so that a script can change them
        before. With ``early_forward=True`` the next forward begins when the update of its first
        layers is there: see ``settle``. ``report_seconds`` is how often this worker tells servers
        its residual, which would be lost with it. ``force`` accepts an optimizer with which the
        recipe is known to diverge. ``connect`` replaces the transport, for tests.
        """
        check_place(rank, workers)
        check_positive(deadline_seconds, owner="Client", field="deadline_seconds")
        check_positive(report_seconds, owner="Client", field="report_seconds")
        if recipe is not None:
            check_recipe(recipe, owner="Client")
        connect = connect or connect_with(keys, insecure=insecure)
        self._server_addresses = ServerAddresses(servers, connect, deadline_seconds)
        self._recipe, self._rank, self._workers = recipe, rank, workers
        self._deadline, self._report_seconds = deadline_seconds, report_seconds
        self._overlap, self._early_forward, self._force = overlap, early_forward, force
        self._seed = seed
        self._tally, self._gradients = Tally(), ReadyGradients()
        self._servers: Servers | None = None
        self._loaded: dict[str, Any] = {}
        self._closed, self.steps = False, 0
        """How many times this worker has pushed gradients, since its training began."""

    def attach(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        *,
        scheduler: LRScheduler | None = None,
        version: int | None = None,
    ) -> None:
        """Join the servers, and catch up with them.

        All workers must begin with the same weights, those of ``version``: 0, or the version of the
        checkpoint that ``net`` and ``optimizer`` were loaded from. ``scheduler`` is stepped once
        for every version, so that all workers apply a version with the same learning rate.
        """
        if self._servers is not None:
            raise ConfigError("Client: attached already")
        check_gradients(net)
        check_optimizer(net, optimizer)
        recipe = choose_recipe(self._recipe, optimizer, owner="Client", force=self._force)
        if recipe.rescales:
            check_one_rate(optimizer)
        self._recipe, self._overlap = recipe, self._overlap and not recipe.clips_model
        self._role = WorkerRole(recipe, rank=self._rank, workers=self._workers, seed=self._seed)
        self._net, self._optimizer, self._scheduler = net, optimizer, scheduler
        self._parameters = trained_parameters(net)
        self._role.momentum = use_momentum(recipe, optimizer, self._parameters)
        self.steps = int(self._loaded.get("steps", 0))
        self._servers = Servers(
            self._server_addresses,
            recipe,
            [Key(name, tuple(p.shape)) for name, p in self._parameters.items()],
            rank=self._rank,
            workers=self._workers,
            version=int(self._loaded.get("version", 0)) if version is None else version,
            weights=self._parameters.values(),
        )
        self._pipeline = Pipeline(["encode"], on_error=lambda error: None)
        try:
            self._begin(self._servers, recipe)
        except BaseException as error:
            self._end(error)
            raise

    def _begin(self, servers: Servers, recipe: Recipe) -> None:
        if recipe.shares_momentum:
            servers.check_synchronous()
        trained = Trained(
            servers,
            self._parameters,
            self._optimizer,
            self._scheduler,
            self._tally,
            self._deadline,
            self._role.momentum,
        )
        at_once = AtOnce(trained)
        self._applying: Applying = at_once
        self._pushing = Pushing(servers, self._parameters, recipe, self._role, self._tally)
        self.steps = self._pushing.load_state_dict(self._loaded, steps=self.steps)
        at_once.catch_up(step=self.steps)
        if self._early_forward:
            self._applying = Early(trained, self._net)
        self._gradients.watch(self._parameters, self._push_ready if self._overlap else None)

    @property
    def version(self) -> int:
        """How many updates were applied to all weights."""
        self.settle()
        return self._joined().updates.version

    def step(self) -> None:
        """Push what is left, wait for the next version, and apply all versions that are there.

        With ``early_forward=True`` it does not wait if nothing is there: the next forward does.
        """
        self._joined()
        self._check_unchanged()
        self._applying.check_read()
        self.settle()
        self._gradients.add_rest()
        self._submit()
        self._drain()
        self._applying.advance(step=self.steps)
        self.steps += 1
        self._gradients.clear()
        report = partial(self._pushing.report, self.steps, every_seconds=self._report_seconds)
        self._pipeline.submit(PushJob(report))

    def settle(self) -> None:
        """With ``early_forward=True``: wait for the awaited version, and apply it to all weights.

        Call it before weights are used or changed in another way than by calling the modules that
        own them, such as for a moving average. ``step``, ``version``, ``stats``, ``close``, all
        state dicts, and a forward without gradients do it by themselves.
        """
        self._joined()
        self._applying.settle()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without a push: for all but the last of several batches."""
        with self._gradients.paused():
            yield

    def wait(self) -> None:
        """For ``tw.optim.CLAN``: when ``step()`` calls the optimizer, its gradients are there."""

    def stats(self) -> ClientStats:
        """What happened so far. Call it between steps."""
        servers, tally = self._joined(), self._tally
        self.settle()
        self._drain()
        ratios, ratio = residual_ratios(self._role.compressor, servers.pieces)
        return ClientStats(
            recipe=typed_recipe(self._pushing.recipe),
            steps=self.steps,
            version=self.version,
            dense_nbytes=sum(tally.dense.values()),
            pushed_nbytes=sum(tally.pushed.values()),
            pulled_nbytes=sum(tally.pulled.values()),
            sent_nbytes=servers.sent_nbytes,
            received_nbytes=servers.received_nbytes,
            refused_pieces=servers.updates.refused_pieces,
            overflowed_pieces=self._pushing.overflowed,
            rejoined=sum(session.rejoined for session in servers.sessions),
            encode_seconds=self._pipeline.work_seconds["encode"],
            residual_ratio=ratio,
            tensors=tally.tensors(ratios),
            dense_pulled_nbytes=sum(tally.dense_pulled.values()),
        )

    def state_dict(self) -> dict[str, Any]:
        """The residual and the version. Waits until servers have acknowledged all its pushes."""
        self.settle()
        self._drain()
        return {"steps": self.steps, "version": self.version, **self._pushing.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken: call it before ``attach``."""
        if self._servers is not None:
            raise ConfigError("Client: load_state_dict comes before attach")
        check_state(state)
        self._loaded = dict(state)

    def close(self) -> None:
        """Tell the servers that this worker is done."""
        try:
            if self._servers is not None and not self._closed:
                self.settle()
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Leave the servers. With an error they expect this worker to come back."""
        self._gradients.unwatch()
        if self._servers is not None and not self._closed:
            if self._role.momentum is not None:
                self._role.momentum.detach()
            self._applying.end()
            self._pipeline.close()
            if error is None:
                self._servers.close()
            else:
                self._servers.abandon(f"{type(error).__name__}: {error}")
        self._closed = True

    def _joined(self) -> Servers:
        if self._servers is None:
            raise ConfigError("Client: call attach(net, optimizer) first")
        return self._servers

    def _drain(self) -> None:
        """Wait for the background: until then it may change residuals."""
        if self._closed:
            raise ConfigError("Client: closed already")
        self._pipeline.drain(deadline_seconds=2 * self._deadline, what=f"step {self.steps}")

    def _check_unchanged(self) -> None:
        """Raise ConfigError if other parameters are trained, or gradients are not those sent."""
        check_same_parameters(self._net, self._parameters)
        self._gradients.check_unchanged()

    def _push_ready(self) -> None:
        # Before all weights have their version, its scheduler has not stepped yet.
        if self._applying.is_settled:
            self._submit()

    def _submit(self) -> None:
        names = self._gradients.take()
        if names:
            info = StepInfo(self.steps, float(self._optimizer.param_groups[0]["lr"]))
            version = self._joined().updates.version
            self._pipeline.submit(PushJob(partial(self._pushing.push, names, info, version)))
