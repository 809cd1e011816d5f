"""``Engine``: how a backend computes steps; ``Tally``: what a run has counted."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from torch import nn
from torch.optim.optimizer import Optimizer

from thinwire.defaults import RANK_DEADLINE_SECONDS
from thinwire_lab.train.events import Epoch, Progress

DEADLINE_SECONDS = RANK_DEADLINE_SECONDS
"""How long real workers wait for each other: rank 0 evaluates now and then."""


@dataclass(frozen=True, slots=True)
class Step:
    """Training loss of a step, and the bytes of one worker. (Real workers know only their own loss;
    with simulated workers it is the mean.)"""

    loss: float
    pushed_nbytes: float
    pulled_nbytes: float


class Engine(Protocol):
    """If it is made with a state, it resumes from there."""

    net: nn.Module

    @property
    def done(self) -> int:
        """How many steps are done since the run began."""

    def step(self, losses: tuple[float, ...]) -> Step:
        """Make the next step. ``losses`` are those of all epochs so far, for the learning rate."""

    def shown(self) -> AbstractContextManager[None]:
        """``net`` has the weights to be evaluated in here."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on, in plain tensors and numbers."""

    def close(self, *, finished: bool) -> None:
        """Leave the other workers: the run is ``finished``, or will be resumed."""


class Traffic:
    """Bytes of each step, from totals that only grow."""

    def __init__(self) -> None:
        self._before = (0, 0)

    def since(self, pushed_nbytes: int, pulled_nbytes: int) -> tuple[int, int]:
        """Bytes pushed and pulled since the last call."""
        pushed, pulled = self._before
        self._before = pushed_nbytes, pulled_nbytes
        return pushed_nbytes - pushed, pulled_nbytes - pulled


def set_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


@dataclass(slots=True)
class Tally:
    """Saved with every checkpoint. ``steps`` may be fewer than the run has, after a crash.
    ``losses`` are the validation losses of all epochs; ``epoch_loss`` is the sum of
    ``epoch_steps`` training losses."""

    dense_nbytes: int
    steps: int = 0
    seconds: float = 0.0
    pushed_nbytes: float = 0.0
    pulled_nbytes: float = 0.0
    epoch_loss: float = 0.0
    epoch_steps: int = 0
    losses: tuple[float, ...] = ()

    @classmethod
    def load(cls, state: dict[str, Any]) -> Tally:
        return cls(**{**state, "losses": tuple(state["losses"])})

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def add(self, step: Step, seconds: float) -> None:
        self.steps += 1
        self.seconds += seconds
        self.pushed_nbytes += step.pushed_nbytes
        self.pulled_nbytes += step.pulled_nbytes
        self.epoch_loss += step.loss
        self.epoch_steps += 1

    def progress(self, done: int, loss: float, learning_rate: float) -> Progress:
        return Progress(done, loss, learning_rate, *self._bytes(), self.seconds)

    def end_epoch(self, done: int, epoch: float, learning_rate: float) -> Epoch:
        """Report this epoch, and start the next one."""
        loss = self.epoch_loss / max(1, self.epoch_steps)
        self.epoch_loss, self.epoch_steps = 0.0, 0
        return Epoch(done, epoch, loss, learning_rate, *self._bytes(), self.seconds)

    def _bytes(self) -> tuple[float, float, float]:
        pushed, pulled = self.pushed_nbytes / self.steps, self.pulled_nbytes / self.steps
        return pushed, pulled, 2 * self.dense_nbytes / max(1.0, pushed + pulled)
