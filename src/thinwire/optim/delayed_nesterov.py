"""``DelayedNesterov``: Nesterov momentum for updates that come one by one (Liu et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.checks import check_momentum, check_positive, check_whole
from thinwire.optim.sgd import loss_of


class DelayedNesterov(Optimizer):
    """SGD whose momentum takes part in every ``delay``-th step only.

    In between, an update is applied by itself, and kept for the momentum. Where workers answer one
    after the other, momentum in every step would count each of them ``delay`` times as much. With
    ``delay=1`` it is the Nesterov momentum of ``torch.optim.SGD``, bit for bit.
    """

    def __init__(
        self, params: Iterable[Any], *, lr: float = 0.7, momentum: float = 0.9, delay: int = 1
    ) -> None:
        check_positive(lr, owner="DelayedNesterov", field="lr")
        check_momentum(momentum, owner="DelayedNesterov")
        check_whole(delay, least=1, owner="DelayedNesterov", field="delay")
        super().__init__(params, {"lr": lr, "momentum": momentum, "delay": delay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Apply the gradients, each of which is the mean of an update."""
        loss = loss_of(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)
        return loss

    def _step(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, rate, momentum = self.state[parameter], group["lr"], group["momentum"]
        if not state:
            # Minus zero is what adds nothing, not even a sign: as torch's, which begins with grad.
            state["step"] = torch.zeros(())
            state["sum"] = torch.full_like(parameter, -0.0)
            state["momentum_buffer"] = torch.full_like(parameter, -0.0)
        state["step"] += 1
        state["sum"].add_(grad)
        update = grad
        if int(state["step"]) % group["delay"] == 0:
            buffer = state["momentum_buffer"].mul_(momentum).add_(state["sum"])
            update = grad.add(buffer, alpha=momentum)
            state["sum"].fill_(-0.0)
        parameter.add_(update, alpha=-rate)
