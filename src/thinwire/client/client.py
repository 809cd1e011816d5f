"""``Client``: a worker of parameter servers. Pushes during backward, applies updates in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from thinwire.choice import choose_recipe
from thinwire.client.attached import Attached, ClientSettings, Target
from thinwire.client.local import LocalTraining
from thinwire.client.push import check_state
from thinwire.client.servers import Connect, ServerAddresses, connect_with
from thinwire.defaults import SERVER_DEADLINE_SECONDS
from thinwire.errors import ConfigError
from thinwire.gradient.network import check_gradients, check_one_rate, check_optimizer
from thinwire.keys.settings import WorkerKeys
from thinwire.local.rounds import Rounds, as_rounds
from thinwire.recipe import Recipe, check_recipe, local_average
from thinwire.watch.stats import ClientStats


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
        local_steps: int | Literal["auto"] | Rounds | None = None,
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

        With ``local_steps`` (a number, or ``tw.Rounds``) this worker trains alone for so many steps
        of its optimizer, each of which is counted, and then exchanges what it has changed, as with
        ``tw.local_steps``. Without a ``recipe`` that is ``local_average()``. With "auto" a slower
        worker makes fewer steps in a round: see ``tw.Rounds``.
        """
        if recipe is not None:
            check_recipe(recipe, owner="Client")
        self._settings = ClientSettings(
            rank,
            workers,
            deadline_seconds,
            report_seconds,
            overlap,
            early_forward,
            seed,
            force,
            None if local_steps is None else as_rounds(local_steps),
        )
        connect = connect or connect_with(keys, insecure=insecure)
        self._addresses = ServerAddresses(servers, connect, deadline_seconds)
        self._recipe = recipe
        self._attached: Attached | None = None
        self._local: LocalTraining | None = None
        self._loaded: dict[str, Any] = {}

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
        for every version, so that all workers apply a version with the same learning rate; with
        local steps, once for every step.
        """
        if self._attached is not None:
            raise ConfigError("Client: attached already")
        check_gradients(net)
        check_optimizer(net, optimizer)
        self._check_loaded()
        recipe = self._recipe_for(optimizer)
        target = Target.of(net, optimizer, scheduler)
        if self._settings.rounds is not None:
            target = self._train_alone(target, net, recipe, self._settings.rounds)
        if version is None:
            version = int(self._loaded.get("version", 0))
        attached = Attached(self._addresses, recipe, target, self._settings, version=version)
        self._attached = attached
        try:
            attached.begin(self._loaded)
            if self._local is None:
                attached.catch_up()
            else:
                self._local.catch_up(attached.catch_up, counted=attached.steps)
                self._local.start(attached)
        except BaseException as error:
            self._end(error)
            raise

    def _check_loaded(self) -> None:
        """Refuse the state of another kind of training, whose weights mean something else."""
        alone = self._settings.rounds is not None
        if self._loaded and ("local" in self._loaded) != alone:
            kind, do = ("without", "leave out") if alone else ("with", "give")
            raise ConfigError(
                f"Client: this state is of a worker {kind} local steps: {do} local_steps="
            )

    def _recipe_for(self, optimizer: Optimizer) -> Recipe:
        if self._settings.rounds is not None:
            return local_average() if self._recipe is None else self._recipe
        force = self._settings.force
        recipe = choose_recipe(self._recipe, optimizer, owner="Client", force=force)
        if recipe.rescales:
            check_one_rate(optimizer)
        return recipe

    def _train_alone(
        self, target: Target, net: nn.Module, recipe: Recipe, rounds: Rounds
    ) -> Target:
        """The global weights in place of the network, which trains on beside them."""
        local = self._local = LocalTraining(
            net,
            target.optimizer,
            recipe,
            rounds,
            rank=self._settings.rank,
            workers=self._settings.workers,
            scheduler=target.scheduler,
        )
        if "local" in self._loaded:
            local.load_state_dict(self._loaded["local"])
        weights = local.weights
        return Target(weights.tensors, weights.optimizer, weights.keys)

    @property
    def steps(self) -> int:
        """How many times this worker has pushed, since its training began."""
        return 0 if self._attached is None else self._attached.steps

    @property
    def version(self) -> int:
        """How many updates were applied to all weights."""
        self.settle()
        return self._joined().version

    def step(self) -> None:
        """Push what is left, wait for the next version, and apply all versions that are there.

        With ``early_forward=True`` it does not wait if nothing is there: the next forward does.
        With local steps it is a step of the optimizer, and then of the scheduler.
        """
        attached = self._joined()
        if self._local is not None:
            self._local.step()
            return
        attached.check_unchanged()
        attached.applying.settle()
        attached.push_rest()
        attached.take_next(step=attached.steps)
        attached.count_step()

    def synchronize(self) -> None:
        """With local steps: exchange all that is left, and wait, for the end of training.

        With synchronous servers all workers then have the same weights; all must call it in the
        same round.
        """
        self._alone().synchronize(self._joined())

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """With local steps: the network has the global weights in here, to be evaluated or saved.
        They are those of the newest version that was applied. No step may be made in here."""
        with self._alone().weights.in_network():
            yield

    def settle(self) -> None:
        """With ``early_forward=True``: wait for the awaited version, and apply it to all weights.

        Call it before weights are used or changed in another way than by calling the modules that
        own them, such as for a moving average. ``step``, ``version``, ``stats``, ``close``, all
        state dicts, and a forward without gradients do it by themselves.
        """
        self._joined().applying.settle()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without a push: for all but the last of several batches."""
        with self._joined().gradients.paused():
            yield

    def wait(self) -> None:
        """For ``tw.optim.CLAN``: when ``step()`` calls the optimizer, its gradients are there."""

    def stats(self) -> ClientStats:
        """What happened so far. Call it between steps."""
        self.settle()
        stats = self._joined().stats()
        return stats if self._local is None else self._local.stats(stats)

    def state_dict(self) -> dict[str, Any]:
        """The residual and the version. Waits until servers have acknowledged all its pushes.

        With local steps it has the weights of the network, too; save the optimizer's state with it.
        """
        self.settle()
        local = {} if self._local is None else {"local": self._local.state_dict()}
        return {**self._joined().state_dict(), **local}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken: call it before ``attach``."""
        if self._attached is not None:
            raise ConfigError("Client: load_state_dict comes before attach")
        check_state(state)
        self._loaded = dict(state)

    def close(self) -> None:
        """Tell the servers that this worker is done."""
        try:
            if self._attached is not None and not self._attached.closed:
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
        if self._local is not None:
            self._local.stop()
        if self._attached is not None:
            self._attached.end(error)

    def _joined(self) -> Attached:
        if self._attached is None:
            raise ConfigError("Client: call attach(net, optimizer) first")
        return self._attached

    def _alone(self) -> LocalTraining:
        if self._local is None:
            raise ConfigError("Client: give local_steps=, and call attach(net, optimizer) first")
        return self._local
