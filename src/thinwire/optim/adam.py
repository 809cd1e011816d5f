"""``AdamW``, and steps of Adam and AdamW whose variance is refreshed only now and then.

Their state is that of ``torch.optim.AdamW``. ``step`` says how many steps' worth of squares the
variance holds, so that torch's own correction of it is right wherever a checkpoint goes: a refresh
that stands for many steps counts as many, up to a weight of ``1 - LEAST_DECAY``.

One bit for each element of the momentum is coarse where elements differ much. Divided by a small
variance the error of a neighbour with a large one would be a large step. So no variance counts as
less than ``FLOOR`` of the mean of its block (that of the codec: ``row_block``); no element moves
further than Adam itself would; and where no refresh has seen a gradient, nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer

from thinwire import _native
from thinwire.codec.policy import BLOCK
from thinwire.gradient.network import local_part
from thinwire.optim.sgd import loss_of
from thinwire.optim.sign_runs import SignRuns

FLOOR = 0.1
LEAST_DECAY = 0.5
"""A refresh that stands for many steps keeps at least this part of the variance: the squares of a
single gradient are too noisy to replace all others."""


@dataclass(frozen=True, slots=True)
class AdamState:
    """What Adam keeps for this rank's part of one parameter."""

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
        return cls(state["step"], local_part(state["exp_avg"]), local_part(state["exp_avg_sq"]))


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """The settings of a group. ``decoupled``: weight decay is that of AdamW."""

    rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    decoupled: bool
    maximize: bool
    block: int = BLOCK

    @classmethod
    def of(cls, optimizer: Optimizer, group: dict[str, Any], *, block: int = BLOCK) -> AdamSettings:
        is_adamw = isinstance(optimizer, torch.optim.AdamW)
        return cls(
            float(group["lr"]),
            (float(group["betas"][0]), float(group["betas"][1])),
            float(group["eps"]),
            float(group["weight_decay"]),
            bool(group.get("decoupled_weight_decay", is_adamw)),
            bool(group.get("maximize")),
            block,
        )

    @property
    def limit(self) -> float:
        """The largest ratio of momentum and root of the variance between refreshes.

        Adam itself has (1 - beta1) / sqrt(1 - beta2) for a gradient that comes once, and 1 for one
        that stays. Between refreshes the variance does not see a gradient that the momentum has,
        and a row that had none for long would leap.
        """
        return max(1.0, (1.0 - self.betas[0]) / math.sqrt(1.0 - self.betas[1]))

    def step(self, parameter: Tensor, gradient: Tensor, state: AdamState) -> None:
        """An ordinary step, of tensors that are native."""
        beta1, beta2 = self.betas
        state.step.add_(1.0)
        decay, step_size, correction = self._factors(state)
        gradient = -gradient if self.maximize else gradient
        _native.adam_step(
            parameter.view(-1),
            gradient.view(-1),
            state.exp_avg.view(-1),
            state.exp_avg_sq.view(-1),
            decay=decay,
            beta1=beta1,
            beta2=beta2,
            eps=self.eps,
            step_size=step_size,
            correction2_sqrt=correction,
            l2=0.0 if self.decoupled else self.weight_decay,
        )
        _count_version(state.exp_avg)

    def apply_momentum(
        self, parameter: Tensor, momentum: Tensor, state: AdamState, runs: SignRuns | None = None
    ) -> None:
        """Move by a new momentum; the variance stays what it is. ``runs`` become those of it."""
        l2 = 0.0 if self.decoupled else self.weight_decay * (1.0 - self.betas[0])
        self._move(parameter, momentum, state, l2=l2, runs=None if l2 else runs)

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
        self._move(parameter, state.exp_avg, state, l2=0.0)

    def _move(
        self,
        parameter: Tensor,
        momentum: Tensor,
        state: AdamState,
        *,
        l2: float,
        runs: SignRuns | None = None,
    ) -> None:
        """``l2`` times the parameter is added to the momentum."""
        if is_native(parameter, momentum, state.exp_avg, state.exp_avg_sq):
            self._move_natively(parameter, momentum, state, l2=l2, runs=runs)
            return
        decay, step_size, correction = self._factors(state)
        if momentum is not state.exp_avg:
            state.exp_avg.copy_(momentum)
        if l2:
            state.exp_avg.add_(parameter * l2)
        root = floored(state.exp_avg_sq, self.block).sqrt_().div_(correction).add_(self.eps)
        moves = (state.exp_avg / root).clamp_(-self.limit, self.limit)
        moves.masked_fill_(state.exp_avg_sq == 0, 0.0)
        parameter.mul_(decay).sub_(moves.mul_(step_size))

    def _move_natively(
        self,
        parameter: Tensor,
        momentum: Tensor,
        state: AdamState,
        *,
        l2: float,
        runs: SignRuns | None,
    ) -> None:
        decay, step_size, correction = self._factors(state)
        held = _native.adam_momentum_step(
            parameter.view(-1),
            momentum.view(-1),
            state.exp_avg.view(-1),
            state.exp_avg_sq.view(-1),
            decay=decay,
            eps=self.eps,
            step_size=step_size,
            correction2_sqrt=correction,
            l2=l2,
            floor=FLOOR,
            block=self.block,
            limit=self.limit,
            runs=None if runs is None else runs.room(parameter.numel()),
        )
        _count_version(state.exp_avg)
        if held and runs is not None:
            runs.hold(state.exp_avg)
        elif runs is not None:
            runs.drop()

    def _factors(self, state: AdamState) -> tuple[float, float, float]:
        """The decay of a parameter, and what ``_corrected`` says."""
        decay = 1.0 - self.rate * self.weight_decay if self.decoupled else 1.0
        return decay, *self._corrected(float(state.step))

    def _corrected(self, steps: float) -> tuple[float, float]:
        """The step size, and the root of what the variance lacks, both for the bias of means."""
        if not steps:  # there is no variance yet, and nothing moves
            return 0.0, 1.0
        beta1, beta2 = self.betas
        return self.rate / (1.0 - beta1**steps), math.sqrt(1.0 - beta2**steps)


def _count_version(x: Tensor) -> None:
    """Count a change in place by a kernel, as torch counts its own."""
    if not x.is_inference():
        increment_version(x)


def is_native(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors."""
    return all(
        x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous() for x in tensors
    )


class AdamW(torch.optim.AdamW):
    """``torch.optim.AdamW`` with the same arguments and state, and kernels of our own.

    They take float32 in CPU memory; other parameters, and settings such as ``amsgrad`` and
    ``fused``, are left to torch. Results are equal but for roundings.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Do one step; ``closure`` recomputes the loss, as everywhere in torch."""
        loss = loss_of(closure)
        done: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            settings = AdamSettings.of(self, group)
            # A GradScaler leaves the gradients of fused optimizers scaled.
            if any(group[name] for name in ("amsgrad", "differentiable", "capturable", "fused")):
                continue
            for parameter in group["params"]:
                grad = parameter.grad
                if grad is None or grad.is_sparse:
                    continue
                own, own_grad = local_part(parameter), local_part(grad)
                if not is_native(own, own_grad):
                    continue
                settings.step(own, own_grad, AdamState.of(self, parameter))
                done.append((parameter, grad))
        self._leave_rest_to_torch(done)
        return loss

    def _leave_rest_to_torch(self, done: list[tuple[Tensor, Tensor]]) -> None:
        rest = {id(p) for group in self.param_groups for p in group["params"] if p.grad is not None}
        if rest <= {id(parameter) for parameter, _ in done}:
            return
        for parameter, _ in done:
            parameter.grad = None
        super().step()
        for parameter, grad in done:
            parameter.grad = grad


def floored(variance: Tensor, block: int) -> Tensor:
    """A copy of ``variance`` that is nowhere less than a part of the mean of its block."""
    flat = variance.reshape(-1)
    whole = flat.numel() // block * block
    raised = torch.empty_like(flat)
    for part, out in ((flat[:whole], raised[:whole]), (flat[whole:], raised[whole:])):
        if part.numel():
            blocks = part.view(-1, min(block, part.numel()))
            torch.maximum(blocks, blocks.mean(1, keepdim=True) * FLOOR, out=out.view_as(blocks))
    return raised.view(variance.shape)
