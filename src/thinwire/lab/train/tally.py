"""What a run has counted since it began; saved with its checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from thinwire.lab.train.engine import Step
from thinwire.lab.train.events import Epoch, Progress


@dataclass(slots=True)
class Tally:
    """``steps`` may be fewer than the run has, after a loss. ``losses`` are those of all epochs,
    validated. ``epoch_loss`` is the sum of ``epoch_steps`` losses in training."""

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
        """What is to be said of it. The next one begins."""
        loss = self.epoch_loss / max(1, self.epoch_steps)
        self.epoch_loss, self.epoch_steps = 0.0, 0
        return Epoch(done, epoch, loss, learning_rate, *self._bytes(), self.seconds)

    def _bytes(self) -> tuple[float, float, float]:
        pushed, pulled = self.pushed_nbytes / self.steps, self.pulled_nbytes / self.steps
        return pushed, pulled, 2 * self.dense_nbytes / (pushed + pulled)
