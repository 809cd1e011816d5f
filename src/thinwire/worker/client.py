"""A worker of parameter servers: pushes during backward, applies every update in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from thinwire.errors import ConfigError
from thinwire.gradient.keys import Key
from thinwire.recipe import Recipe, check_recipe
from thinwire.settings import check_positive, check_whole
from thinwire.transport.keys import WorkerCurve
from thinwire.worker.apply import Applying, AtOnce, Trained
from thinwire.worker.early import Early
from thinwire.worker.momentum import take_over_momentum
from thinwire.worker.network import (
    check_gradients,
    check_one_rate,
    check_optimizer,
    trained_parameters,
)
from thinwire.worker.pipeline import Pipeline
from thinwire.worker.pushing import Pushing
from thinwire.worker.servers import Connect, Servers, connect_with
from thinwire.worker.sides import Round, WorkerSide
from thinwire.worker.stats import ClientStats, Tally, residual_ratios

PUSH_NUMEL = 1 << 18
"""Elements that are worth a message of their own while backward goes on."""


class Client:
    """Trains a network with other workers through servers, without a process group.

    Gradients are compressed and sent while backward goes on. ``step()`` waits for the next version
    of all of them, and does one optimizer step for every version that is there. So at equal
    ``version`` all workers have equal weights, whatever the optimizer.
    """

    def __init__(
        self,
        servers: Sequence[str],
        recipe: Recipe,
        *,
        rank: int,
        workers: int,
        keys: WorkerCurve | None = None,
        insecure: bool = False,
        deadline_seconds: float = 60.0,
        report_seconds: float = 5.0,
        overlap: bool = True,
        early_forward: bool = False,
        seed: int = 0,
        connect: Connect | None = None,
    ) -> None:
        """``servers`` are addresses such as "tcp://host:5555", the same for all workers.

        With ``overlap=False`` gradients are sent by ``step()``, so that a script can change them
        before. With ``early_forward=True`` the next forward begins when the update of its first
        layers is there: see ``settle``. ``report_seconds``: how often servers are told what this
        worker owes, which would be lost with it. ``connect`` replaces the transport, for tests.
        """
        check_whole(workers, least=1, owner="Client", field="workers")
        check_whole(rank, least=0, owner="Client", field="rank")
        check_positive(deadline_seconds, owner="Client", field="deadline_seconds")
        check_positive(report_seconds, owner="Client", field="report_seconds")
        check_recipe(recipe, owner="Client")
        if rank >= workers:
            ranks = "0" if workers == 1 else f"0 to {workers - 1}"
            raise ConfigError(f"Client: rank {rank}, but with workers={workers} ranks are {ranks}")
        self._addresses, self._recipe = servers, recipe
        self._rank, self._workers = rank, workers
        self._deadline, self._report_seconds = deadline_seconds, report_seconds
        self._overlap, self._pausing = overlap and not recipe.clips_model, False
        self._early_forward = early_forward
        self._connect = connect or connect_with(keys, insecure=insecure)
        self._side = WorkerSide(recipe, rank=rank, workers=workers, seed=seed)
        self._tally = Tally()
        self._servers: Servers | None = None
        self._handles: list[RemovableHandle] = []
        self._closed = False
        self._loaded: dict[str, Any] = {}
        self.steps = 0
        """How many times gradients were pushed, since the beginning of this worker's training."""

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
        if self._recipe.rescales:
            check_one_rate(optimizer)
        take_over_momentum(self._recipe, optimizer)
        self._net, self._optimizer, self._scheduler = net, optimizer, scheduler
        self._parameters = trained_parameters(net)
        self.steps = int(self._loaded.get("steps", 0))
        self._servers = Servers(
            self._addresses,
            self._recipe,
            [Key(name, tuple(p.shape)) for name, p in self._parameters.items()],
            connect=self._connect,
            rank=self._rank,
            workers=self._workers,
            version=int(self._loaded.get("version", 0)) if version is None else version,
            deadline_seconds=self._deadline,
            weights=self._parameters.values(),
        )
        self._pipeline = Pipeline(["encode"], on_error=lambda error: None)
        try:
            self._begin(self._servers)
        except BaseException as error:
            self._end(error)
            raise

    def _begin(self, servers: Servers) -> None:
        trained = Trained(
            servers,
            self._parameters,
            self._optimizer,
            self._scheduler,
            self._tally,
            self._deadline,
        )
        at_once = AtOnce(trained)
        self._applying: Applying = at_once
        self._pushing = Pushing(servers, self._parameters, self._recipe, self._side, self._tally)
        self.steps = self._pushing.load_state_dict(self._loaded, steps=self.steps)
        self._ready: list[str] = []
        self._given: dict[str, int] = {}
        at_once.catch_up(step=self.steps)
        if self._early_forward:
            self._applying = Early(trained, self._net)
        if self._overlap:
            for name, parameter in self._parameters.items():
                hook = self._hook(name)
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._handles.append(handle)

    @property
    def version(self) -> int:
        """How many updates were applied: all weights have this one."""
        self.settle()
        return self._joined().arrivals.version

    def step(self) -> None:
        """Push what is left, wait for the next version, and apply all versions that are there.

        With ``early_forward=True`` it does not wait if nothing is there: the next forward does.
        """
        self._joined()
        self._check_unchanged()
        self._applying.check_read()
        self.settle()
        for name, parameter in self._parameters.items():
            if name not in self._given:
                self._give(name, parameter)
        self._submit()
        self._drain()
        self._applying.advance(step=self.steps)
        self.steps += 1
        self._given.clear()
        report = partial(self._pushing.report, self.steps, every_seconds=self._report_seconds)
        self._pipeline.submit(_Job(report))

    def settle(self) -> None:
        """With ``early_forward=True``: wait until all weights have the version that is awaited.

        Call it before weights are used or changed in another way than by calling the modules that
        own them, such as for a moving average. ``step``, ``version``, ``stats``, ``close``, all
        state dicts, and a forward without gradients do it by themselves.
        """
        self._joined()
        self._applying.settle()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward in here only adds to the gradients: for all but the last of several batches."""
        self._pausing = True
        try:
            yield
        finally:
            self._pausing = False

    def wait(self) -> None:
        """For ``tw.optim.CLAN``: when ``step()`` calls the optimizer, its gradients are there."""

    def stats(self) -> ClientStats:
        """What happened so far. Call it between steps."""
        servers, tally = self._joined(), self._tally
        self.settle()
        self._drain()
        ratios, ratio = residual_ratios(self._side.compressor, servers.pieces)
        return ClientStats(
            steps=self.steps,
            version=self.version,
            dense_nbytes=sum(tally.dense.values()),
            pushed_nbytes=sum(tally.pushed.values()),
            pulled_nbytes=sum(tally.pulled.values()),
            sent_nbytes=sum(desk.sent_nbytes for desk in servers.desks),
            received_nbytes=sum(desk.received_nbytes for desk in servers.desks),
            refused_pieces=servers.arrivals.refused_pieces,
            overflowed_pieces=self._pushing.overflowed,
            rejoined=sum(desk.rejoined for desk in servers.desks),
            encode_seconds=self._pipeline.work_seconds["encode"],
            residual_ratio=ratio,
            tensors=tally.tensors(ratios),
        )

    def state_dict(self) -> dict[str, Any]:
        """What this worker owes, and how far it is. Waits until the servers have all its pushes."""
        self.settle()
        self._drain()
        return {"steps": self.steps, "version": self.version, **self._pushing.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken: call it before ``attach``."""
        if self._servers is not None:
            raise ConfigError("Client: load_state_dict comes before attach")
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
        """With an error the servers are told that this worker may come back."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._servers is not None and not self._closed:
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
        """Wait for the background: nothing else may look at residuals meanwhile."""
        if self._closed:
            raise ConfigError("Client: closed already")
        self._pipeline.drain(deadline_seconds=2 * self._deadline, what=f"step {self.steps}")

    def _check_unchanged(self) -> None:
        """What is trained, and gradients that may have been sent."""
        if trained_parameters(self._net).keys() != self._parameters.keys():
            raise ConfigError(
                "other parameters are trained than at attach: servers wait for those, so freeze "
                "and unfreeze before attach only"
            )
        for name, version in self._given.items():
            grad = self._parameters[name].grad
            if grad is None or grad._version != version:
                raise ConfigError(
                    f"the gradient of {name} was changed after backward, which may have sent it "
                    "already: use Client(..., overlap=False), or a recipe that clips"
                )

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            if self._pausing:
                return
            if name in self._given:
                raise ConfigError(
                    f"{name} has a second gradient before client.step(): put all backward passes "
                    "of a step but the last into client.no_sync(), and after one that fails call "
                    "client.step() before the next, because what it gave may be sent already"
                )
            self._give(name, parameter)
            enough = sum(self._parameters[n].numel() for n in self._ready) >= PUSH_NUMEL
            # Before all weights have their version, its scheduler has not stepped yet.
            if enough and self._applying.is_settled:
                self._submit()

        return ready

    def _give(self, name: str, parameter: Tensor) -> None:
        self._given[name] = -1 if parameter.grad is None else parameter.grad._version
        self._ready.append(name)

    def _submit(self) -> None:
        names, self._ready = self._ready, []
        if names:
            round_ = Round(self.steps, float(self._optimizer.param_groups[0]["lr"]))
            version = self._joined().arrivals.version
            self._pipeline.submit(_Job(partial(self._pushing.push, names, round_, version)))


class _Job:
    """Work for the background, of one stage."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.stages = (work,)

    def finish(self) -> None:
        """Nobody waits for a single job."""
