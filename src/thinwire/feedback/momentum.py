"""``Momentum``, ``SGDMomentum`` and ``AdamMomentum``: feedback that knows of momentum.

``Momentum`` is momentum correction and factor masking (Deep Gradient Compression, section 3): the
worker has the momentum, and the optimizer has none.

``SGDMomentum`` and ``AdamMomentum`` compress the momentum of the optimizer, not the gradient. What
is compressed must be what the optimizer adds. Feedback delays elements; an optimizer with momentum
adds a late one again for many steps, on top of what is still owed, and Adam divides by the root of
the squares that it sees, which bursts make large. So a worker sends

    factor * momentum + gain * its gradient + its residual

where ``momentum`` is the optimizer's own, the same on all workers. The mean of that is the new
momentum, and so is the answer: every replica has it, and no worker keeps a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.checks import check_momentum, check_whole
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, State, stages_of
from thinwire.gradient.pieces import Key
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


@dataclass(frozen=True, slots=True)
class SharedMomentum:
    """A stage that adds the shared momentum (``info.carried``) to a worker's gradient.

    On the way back it changes nothing, but says which steps carry momentum.
    """

    def travels(self, key: Key, *, step: int) -> bool:
        """Whether momentum of this tensor is sent in this step; if not, its gradient, in full."""
        raise NotImplementedError

    def init(self, numel: int) -> State:
        del numel
        return {}

    def before(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        carried = info.carried
        if carried is None:
            return x
        x = x * carried.gain
        return x if carried.momentum is None else carried.momentum * carried.factor + x

    def after(self, sent: Tensor, state: State, *, sparse: bool) -> None:
        pass


@dataclass(frozen=True, slots=True)
class SGDMomentum(SharedMomentum):
    """For ``torch.optim.SGD`` with momentum, which travels in every step."""

    def travels(self, key: Key, *, step: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class AdamMomentum(SharedMomentum):
    """For Adam and AdamW: the momentum travels, but the variance needs gradients in full.

    So the ``first`` steps are full ones, and later ones at gaps that double, from 2 to
    ``most_gap`` steps. In between the variance stays what it is. A full step sends gradients by the
    codec called ``full``, without feedback, and so do 1-D tensors in every step: they are few, and
    their Adam is an ordinary one.
    """

    first: int = 96
    most_gap: int = 128
    full: str = "bfloat16"

    def __post_init__(self) -> None:
        check_whole(self.first, least=1, owner="AdamMomentum", field="first")
        check_whole(self.most_gap, least=1, owner="AdamMomentum", field="most_gap")
        if self.most_gap & (self.most_gap - 1):
            raise ConfigError(f"AdamMomentum: most_gap must be a power of two, got {self.most_gap}")

    def travels(self, key: Key, *, step: int) -> bool:
        return len(key.shape) > 1 and not self.is_full(step)

    def is_full(self, step: int) -> bool:
        """Whether gradients are sent in full at this step, and the variance is refreshed."""
        since = step - self.first + 1  # the last of the first steps
        steady = 2 * self.most_gap - 2  # where the gap has reached its largest: 2 + 4 + 8 + ...
        if since <= 0:
            return True
        if since >= steady:
            return (since - steady) % self.most_gap == 0
        return (since + 2) & (since + 1) == 0

    def gap(self, step: int) -> int:
        """How many steps a full step stands for: itself, and those since the full one before."""
        since = step - self.first + 1
        return 1 if since <= 0 else min((since + 2) // 2, self.most_gap)


def shared_momentum(feedback: Feedback) -> SharedMomentum | None:
    """The stage of ``feedback`` that shares the optimizer's momentum, if it has one."""
    stages = stages_of(feedback)
    return next((stage for stage in stages if isinstance(stage, SharedMomentum)), None)
