"""``AdamSettings``: the steps of Adam and AdamW whose variance is refreshed only now and then.

Their state is that of ``torch.optim.AdamW``. ``step`` says how many steps' worth of squares the
variance holds, so that torch's own correction of it is right wherever a checkpoint goes: a refresh
that stands for many steps counts as many, up to a weight of ``1 - LEAST_DECAY``.

One bit for each element of the momentum is coarse where elements differ much. Divided by a small
variance the error of a neighbour with a large one would be a large step. So no variance counts as
less than ``FLOOR`` of the mean of its block of ``BLOCK`` elements; and where no refresh has seen a
gradient, nothing moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

FLOOR = 0.1
BLOCK = 1024
LEAST_DECAY = 0.8
"""A refresh that stands for many steps keeps at least this part of the variance: the squares of a
single gradient are too noisy to replace all others."""


@dataclass(frozen=True, slots=True)
class AdamState:
    """What Adam keeps for one parameter."""

    step: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor

    @classmethod
    def of(cls, optimizer: Optimizer, parameter: Tensor) -> AdamState:
        """The optimizer's own state, made if there is none: the parameter was frozen until now."""
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return cls(state["step"], state["exp_avg"], state["exp_avg_sq"])


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """The settings of a group. ``decoupled``: weight decay is that of AdamW."""

    rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    decoupled: bool
    maximize: bool

    @classmethod
    def of(cls, optimizer: Optimizer, group: dict[str, Any]) -> AdamSettings:
        is_adamw = isinstance(optimizer, torch.optim.AdamW)
        return cls(
            float(group["lr"]),
            (float(group["betas"][0]), float(group["betas"][1])),
            float(group["eps"]),
            float(group["weight_decay"]),
            bool(group.get("decoupled_weight_decay", is_adamw)),
            bool(group.get("maximize")),
        )

    def apply_momentum(self, parameter: Tensor, momentum: Tensor, state: AdamState) -> None:
        """Move by a new momentum; the variance stays what it is."""
        state.exp_avg.copy_(momentum)
        if self.weight_decay and not self.decoupled:
            state.exp_avg.add_(parameter * (self.weight_decay * (1.0 - self.betas[0])))
        self._move(parameter, state)

    def apply_gradient(
        self, parameter: Tensor, gradient: Tensor, state: AdamState, *, gap: int
    ) -> None:
        """Move by a gradient in full, which stands for ``gap`` steps in the variance."""
        gradient = -gradient if self.maximize else gradient
        if self.weight_decay and not self.decoupled:
            gradient = gradient + parameter * self.weight_decay
        beta1, beta2 = self.betas
        keep = max(beta2**gap, min(beta2, LEAST_DECAY))
        state.exp_avg.lerp_(gradient, 1.0 - beta1)
        state.exp_avg_sq.mul_(keep).addcmul_(gradient, gradient, value=1.0 - keep)
        state.step.add_(math.log(keep, beta2) if 0.0 < beta2 != keep else 1.0)
        self._move(parameter, state)

    def _move(self, parameter: Tensor, state: AdamState) -> None:
        if self.weight_decay and self.decoupled:
            parameter.mul_(1.0 - self.rate * self.weight_decay)
        steps = float(state.step)
        if not steps:
            return
        beta1, beta2 = self.betas
        root = floored(state.exp_avg_sq).sqrt_().div_(math.sqrt(1.0 - beta2**steps))
        moves = (state.exp_avg / root.add_(self.eps)).masked_fill_(state.exp_avg_sq == 0, 0.0)
        parameter.sub_(moves.mul_(self.rate / (1.0 - beta1**steps)))


def floored(variance: Tensor) -> Tensor:
    """A copy of ``variance`` that is nowhere less than a part of the mean of its block."""
    flat = variance.reshape(-1)
    whole = flat.numel() // BLOCK * BLOCK
    raised = torch.empty_like(flat)
    for part, out in ((flat[:whole], raised[:whole]), (flat[whole:], raised[whole:])):
        if part.numel():
            blocks = part.view(-1, min(BLOCK, part.numel()))
            torch.maximum(blocks, blocks.mean(1, keepdim=True) * FLOOR, out=out.view_as(blocks))
    return raised.view(variance.shape)
