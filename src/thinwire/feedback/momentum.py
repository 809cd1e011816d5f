"""``Momentum``: momentum correction and factor masking (Deep Gradient Compression, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.checks import check_momentum
from thinwire.feedback.base import State
from thinwire.gradient.steps import StepInfo


@dataclass(frozen=True, slots=True)
class Momentum:
    """Accumulate velocity on the worker, so that delayed elements keep their history.

    Vanilla: velocity = momentum * velocity + gradient, and that is passed on. ``nesterov``:
    velocity = momentum * (velocity + gradient), and velocity + gradient is passed on.

    With ``mask`` the velocity of every element a sparse codec just sent is cleared, which stops
    stale momentum from carrying it further. A dense codec delays nothing, so there is nothing to
    clear, and the result is ordinary momentum. Either way the optimizer must use no momentum of
    its own.
    """

    momentum: float = 0.9
    nesterov: bool = False
    mask: bool = True

    def __post_init__(self) -> None:
        check_momentum(self.momentum, owner="Momentum")

    def init(self, numel: int) -> State:
        return {"velocity": torch.zeros(numel)}

    def before(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        velocity = state["velocity"]
        if self.nesterov:
            return velocity.add_(x).mul_(self.momentum) + x
        return velocity.mul_(self.momentum).add_(x)

    def after(self, sent: Tensor, state: State, *, sparse: bool) -> None:
        if self.mask and sparse:
            state["velocity"].masked_fill_(sent != 0, 0.0)
