"""What a task is: frozen settings. With data, workers and a seed they become work to be done."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from thinwire.lab.tasks.optimizers import OptimizerSettings
from thinwire.lab.tasks.schedule import Schedule
from thinwire.settings import check_at_least, check_choice, check_positive, check_whole

SCALES = ("smoke", "small", "paper")
"""smoke: minutes, to see that it runs. small: hours on two cores, reduced to get there. paper: the
paper's own settings, for a cluster."""

Memory = dict[str, Tensor]
"""What one worker carries from step to step, such as the state of an LSTM. Its owner saves it."""


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
    """Batches and scores. The same seed, step and worker give the same batch, whatever was before,
    except for what is in ``memory``."""

    @property
    def epoch_steps(self) -> int:
        """After so many steps all workers together have seen all data once."""

    def loss(self, net: nn.Module, *, step: int, worker: int, memory: Memory) -> Tensor:
        """The loss of a worker's batch. Changes ``memory``."""

    def validate(self, net: nn.Module) -> Score:
        """How good ``net`` is now, on data that is looked at during training."""

    def test(self, net: nn.Module) -> Score:
        """How good it is in the end. Sets without a part for it repeat ``validate``."""


class Architecture(Protocol):
    def make(self) -> nn.Module:
        """A network with first weights from the global generator."""


class Feed(Protocol):
    """Which data, how many rows for each worker and step, and what is done to them."""

    def open(self, data: Path | None, *, workers: int, seed: int) -> Work:
        """Read the data: ThinwireError where it is missing or damaged."""

    @property
    def needs(self) -> str:
        """The folder that must be in the folder of data sets; empty if none."""


@dataclass(frozen=True, slots=True)
class Training:
    """How far and how fast to go.

    The rate rises in a straight line for ``rise_epochs``, then follows ``schedule``. ``clip_norm``
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
        """The same in another time: everything that is at its beginning shrinks with it."""
        times = epochs / self.epochs
        return replace(
            self,
            epochs=epochs,
            rise_epochs=self.rise_epochs * times,
            sparse_epochs=self.sparse_epochs * times,
        )


@dataclass(frozen=True, slots=True)
class Task:
    """``about`` says in one sentence whose settings these are."""

    name: str
    scale: str
    about: str
    model: Architecture
    feed: Feed
    training: Training

    def __post_init__(self) -> None:
        check_choice(self.scale, SCALES, owner="Task", field="scale")
