"""``Task``: frozen settings, which with data, workers and a seed become ``Work``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from thinwire.checks import check_at_least, check_choice, check_positive, check_whole
from thinwire_lab.tasks.optimizers import OptimizerSettings, Schedule

SCALES = ("smoke", "small", "paper")
"""smoke: a minute, to see that it runs. small: hours on two cores, with reduced settings. paper:
the paper's own settings, for a cluster."""

Memory = dict[str, Tensor]
"""What one worker carries from step to step, such as the state of an LSTM. Engines save it."""


@dataclass(frozen=True, slots=True)
class Score:
    """On held-out data: mean loss in nats, and ``value`` of the ``metric`` that papers print."""

    loss: float
    metric: str
    value: float


def accuracy(loss: float, right: float) -> Score:
    """``right`` is a fraction; papers print per cent."""
    return Score(loss, "accuracy", 100.0 * right)


def perplexity(loss: float) -> Score:
    return Score(loss, "perplexity", math.exp(min(loss, 700.0)))


def in_parts(rows: Tensor, count: int) -> Iterator[Tensor]:
    """``count`` rows at a time, so that scoring needs little memory."""
    return (rows[start : start + count] for start in range(0, len(rows), count))


class Work(Protocol):
    """Batches and scores. A batch depends on seed, step, worker and ``memory`` alone, so that a run
    can be resumed."""

    @property
    def epoch_steps(self) -> int:
        """Steps in which all workers together see all data once."""

    def loss(self, net: nn.Module, *, step: int, worker: int, memory: Memory) -> Tensor:
        """The loss of a worker's batch. Changes ``memory``."""

    def validate(self, net: nn.Module) -> Score:
        """Score ``net`` on data that is used to watch training."""

    def test(self, net: nn.Module) -> Score:
        """Score it after training, on test data if the set has some, else as ``validate``."""


class Architecture(Protocol):
    def make(self) -> nn.Module:
        """A network whose initial weights come from the global generator."""


class Feed(Protocol):
    """Which data, how many rows for each worker and step, and how they are augmented."""

    def open(self, data: Path | None, *, workers: int, seed: int) -> Work:
        """Read the data; ThinwireError if it is missing or damaged."""

    @property
    def needs(self) -> str:
        """The folder that must be in the folder of data sets; empty if none."""


@dataclass(frozen=True, slots=True)
class Training:
    """How long to train, and at which learning rate.

    The rate rises linearly for ``rise_epochs``, then follows ``schedule``. ``clip_norm``
    bounds the gradient's norm. ``sparse_epochs`` is DGC's warm-up, in which more is sent.
    ``evaluations_per_epoch`` changes only how often held-out data is looked at.
    """

    epochs: float
    learning_rate: float
    optimizer: OptimizerSettings
    schedule: Schedule
    rise_epochs: float = 0.0
    clip_norm: float | None = None
    sparse_epochs: float = 0.0
    evaluations_per_epoch: int = 1

    def __post_init__(self) -> None:
        check_positive(self.epochs, owner="Training", field="epochs")
        check_positive(self.learning_rate, owner="Training", field="learning_rate")
        for field in ("rise_epochs", "sparse_epochs"):
            check_at_least(getattr(self, field), 0.0, owner="Training", field=field)
        check_whole(
            self.evaluations_per_epoch, least=1, owner="Training", field="evaluations_per_epoch"
        )

    def rate(self, step: int, epoch_steps: int, losses: tuple[float, ...]) -> float:
        """The learning rate of a step. ``losses`` are those of all epochs so far, validated."""
        epoch = step / epoch_steps
        rise = min(1.0, (step + 1) / max(1.0, self.rise_epochs * epoch_steps))
        factor = self.schedule.factor(epoch, part=epoch / self.epochs, losses=losses)
        return self.learning_rate * rise * factor

    def lasting(self, epochs: float) -> Training:
        """The same for another number of epochs: warm-up shrinks or grows with it."""
        times = epochs / self.epochs
        return replace(
            self,
            epochs=epochs,
            rise_epochs=self.rise_epochs * times,
            sparse_epochs=self.sparse_epochs * times,
        )


@dataclass(frozen=True, slots=True)
class Task:
    """``about`` describes the settings in one phrase."""

    name: str
    scale: str
    about: str
    model: Architecture
    feed: Feed
    training: Training

    def __post_init__(self) -> None:
        check_choice(self.scale, SCALES, owner="Task", field="scale")
