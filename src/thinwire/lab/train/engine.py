"""What makes steps: simulated workers, or one of several real ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn
from torch.optim.optimizer import Optimizer

DEADLINE_SECONDS = 600.0
"""Real workers wait so long for each other: one of them evaluates now and then."""


@dataclass(frozen=True, slots=True)
class Step:
    """Training loss of a step, and its bytes there and back of one worker. (Real workers know only
    their own loss; simulated ones have the mean.)"""

    loss: float
    pushed_nbytes: float
    pulled_nbytes: float


class Engine(Protocol):
    """Made with a state, it goes on from there."""

    net: nn.Module

    @property
    def done(self) -> int:
        """How many steps were made since the run began."""

    def step(self, losses: tuple[float, ...]) -> Step:
        """The next one. ``losses`` are those of all epochs so far, for the learning rate."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on, in plain tensors and numbers."""

    def close(self, *, finished: bool) -> None:
        """Leave the others: because all is done, or to go on later."""


def set_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
