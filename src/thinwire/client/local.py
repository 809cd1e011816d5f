"""``LocalTraining``: a worker that trains alone, and exchanges rounds through servers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from thinwire import _native
from thinwire.errors import NonFiniteError
from thinwire.local.global_weights import Changes, GlobalWeights
from thinwire.local.rounds import Rounds
from thinwire.local.speeds import SPEEDS, Speeds, Stopwatch
from thinwire.recipe import Recipe
from thinwire.watch.stats import ClientStats

_logger = logging.getLogger(__name__)


class RoundExchange(Protocol):
    """How changes get to the servers, and versions into the global weights."""

    def push_round(self) -> int:
        """Push the gradients of the global weights; returns their version."""

    def finish_round(self, version: int) -> None:
        """Apply the version after this one, when it is there, and all others that are there."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """Changes that were pushed and not merged, and the version that they are of."""

    changes: Changes
    version: int


class LocalTraining:
    """Counts the steps of ``optimizer``. The global weights have an optimizer of their own, which
    servers' versions are applied with, like those of any client."""

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        recipe: Recipe,
        rounds: Rounds,
        *,
        rank: int,
        workers: int,
        scheduler: LRScheduler | None = None,
    ) -> None:
        self._speeds = Speeds(rank, workers) if rounds.is_auto else None
        beside = {} if self._speeds is None else {SPEEDS: self._speeds.sent}
        self.weights = GlobalWeights(net, recipe, beside)
        self._optimizer, self._scheduler = optimizer, scheduler
        self.steps = 0
        """How many steps the optimizer has made since training began."""
        self._pushed = 0  # rounds
        self._rounds = rounds
        self._begun, self._every = 0, rounds.longest  # of the round under way
        self._watch = Stopwatch()
        self._under_way: _UnderWay | None = None
        self._exchange: RoundExchange | None = None

    def start(self, exchange: RoundExchange) -> None:
        """From now on steps count."""
        self._exchange = exchange
        self._hook = self._optimizer.register_step_post_hook(self._after_step)

    def step(self) -> None:
        """Make one step of this worker alone."""
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()

    def stop(self) -> None:
        """The network is the worker's own from now on."""
        if self._exchange is not None:
            self._exchange = None
            self._hook.remove()

    def synchronize(self, exchange: RoundExchange) -> None:
        """Exchange all that is left, and wait for it."""
        self.weights.check_own("synchronize()")
        if self._under_way is not None:
            self._finish(exchange)
        self._begin(exchange, goes_on=False)
        self._finish(exchange)

    def catch_up(self, apply: Callable[[], None], *, counted: int) -> None:
        """Apply the versions before this worker joined. Servers have counted so many rounds of it:
        if that is more than its checkpoint knows of, it takes the global weights."""
        unsent = self.steps > self._begun
        lost = counted - self._pushed
        if lost > 0:
            self._tell_lost(counted)
            self.steps = self._begun = self._begun + lost * self._every
            self._pushed, self._under_way, unsent = counted, None, False
        if self._under_way is not None:
            apply()  # merged where the round ends
        elif unsent:
            before = {name: self.weights[name].clone() for name in self.weights.local}
            apply()
            self.weights.merge(Changes(before, before))
        else:
            apply()
            self.weights.reset_local()
        if lost > 0 and self._speeds is not None:
            self._speeds.forget_told(self.weights[SPEEDS])

    def _tell_lost(self, counted: int) -> None:
        if self.steps:
            _logger.warning(
                "this worker pushed %d rounds before it was lost, its checkpoint is of round %d "
                "and step %d: it goes on from the global weights, and what it changed after its "
                "last round is lost",
                counted,
                self._pushed,
                self.steps,
            )

    def stats(self, stats: ClientStats) -> ClientStats:
        """Beside what all steps would have sent."""
        dense = 4 * self.steps * self.weights.trained_numel
        tensors = {
            name: replace(tensor, dense_nbytes=4 * self.steps * self.weights[name].numel())
            for name, tensor in stats.tensors.items()
        }
        return replace(
            stats,
            steps=self.steps,
            rounds=stats.steps,
            round_steps=self._every,
            dense_nbytes=dense,
            dense_pulled_nbytes=dense,
            tensors=tensors,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on, but for the optimizer and what is owed."""
        counts = {"steps": self.steps, "pushed": self._pushed}
        under_way = {"begun_at": self._begun, "every": self._every}
        state: dict[str, Any] = {**self.weights.state_dict(), **counts, **under_way}
        if self._speeds is not None:
            state["speeds"] = self._speeds.state_dict()
        if self._under_way is not None:
            state["begun"] = {n: x.clone() for n, x in self._under_way.changes.begun.items()}
            state["version"] = self._under_way.version
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken. The network's weights become those of then."""
        self.weights.load_state_dict(state)
        self.steps, self._pushed = int(state["steps"]), int(state["pushed"])
        self._begun, self._every = int(state["begun_at"]), int(state["every"])
        if self._speeds is not None:
            self._speeds.load_state_dict(state["speeds"])
        if "begun" in state:
            begun = {name: x.clone() for name, x in state["begun"].items()}
            self._under_way = _UnderWay(Changes(begun, begun), int(state["version"]))

    def _after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        self.weights.check_own("an optimizer step")
        self.steps += 1
        self._watch.count()
        if self.steps == self._begun + self._rounds.delay:
            self._finish(exchange)
        if self.steps == self._begun + self._every:
            self._begun = self.steps
            self._begin(exchange, goes_on=self._rounds.overlaps)
            if not self._rounds.overlaps:
                self._finish(exchange)
            self._choose_steps()
        self._watch.run(time.monotonic())

    def _choose_steps(self) -> None:
        """How many the round that begins has, if that is by speed."""
        if self._speeds is not None:
            least = max(1, self._rounds.delay)
            known, most = self.weights[SPEEDS], self._rounds.longest
            self._every = self._speeds.steps(known, most=most, least=least)

    def _begin(self, exchange: RoundExchange, *, goes_on: bool) -> None:
        """Push what the network has changed, in the background."""
        weights = self.weights
        if self._speeds is not None:
            self._speeds.tell(weights[SPEEDS], self._watch.take(time.monotonic()))
        changes = weights.changes(weights.local, goes_on=goes_on)
        for name, flat in changes.flat.items():
            if not _native.all_finite(flat):
                raise NonFiniteError(
                    f"step {self.steps}: {name} is not finite on this worker: training has diverged"
                )
            weights.tensors[name].grad = flat.view(weights[name].shape)
        self._under_way = _UnderWay(changes, exchange.push_round())
        self._pushed += 1

    def _finish(self, exchange: RoundExchange) -> None:
        """Wait for the servers' answer, and merge it."""
        self._watch.stop(time.monotonic())
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            exchange.finish_round(under_way.version)
            self.weights.merge(under_way.changes)
