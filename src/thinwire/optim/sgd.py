"""``SGD`` that leaves the gradient's momentum to the feedback."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.checks import check_at_least, check_momentum
from thinwire.errors import ConfigError


def loss_of(closure: Callable[[], float] | None) -> float | None:
    """Evaluate ``closure``, if there is one, with gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


StepArguments = tuple[tuple[Any, ...], dict[str, Any]]
"""What a hook before a step may return: the arguments to use instead."""


def after_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], act: Callable[[], None]
) -> StepArguments | None:
    """For a hook before a step: ``act`` once the gradients are there, which a closure makes anew.

    ``args`` and ``kwargs`` are those of the hook.
    """
    closure = args[1] if len(args) > 1 else kwargs.get("closure")  # the first is the optimizer
    if closure is None:
        act()
        return None

    def then_act() -> Any:
        loss = closure()
        act()
        return loss

    return args[:1], {**kwargs, "closure": then_act}


class SGD(Optimizer):
    """Step along gradients that carry their momentum already, plus weight decay with its own.

    Weight decay must not go through compression, where it would be delayed and masked. It gets a
    buffer of its own, b = momentum * b + weight_decay * w, and the step is gradient + b
    (``nesterov``: gradient + weight_decay * w + momentum * b). Momentum is linear, so with nothing
    compressed this is classic momentum SGD with L2 regularisation. It needs no communication: b is
    equal on all workers.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        check_at_least(lr, 0.0, owner="SGD", field="lr")
        check_at_least(weight_decay, 0.0, owner="SGD", field="weight_decay")
        check_momentum(momentum, owner="SGD")
        if nesterov and not momentum:
            raise ConfigError("SGD: nesterov needs a momentum above 0")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Do one step; ``closure`` recomputes the loss, as everywhere in torch."""
        loss = loss_of(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    direction = parameter.grad
                    decay = decay_of(parameter, self.state[parameter], group)
                    if decay is not None:
                        direction = direction + decay
                    parameter.add_(direction, alpha=-group["lr"])
        return loss


def decay_of(parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor | None:
    """What weight decay adds to the step. Its velocity, if there is momentum, is in ``state``."""
    weight_decay, momentum = float(group["weight_decay"]), float(group["momentum"])
    if not weight_decay:
        return None
    decay = parameter.detach() * weight_decay
    if not momentum:
        return decay
    if "decay_velocity" not in state:
        state["decay_velocity"] = torch.zeros_like(parameter)
    velocity: Tensor = state["decay_velocity"].mul_(momentum).add_(decay)
    return decay.add_(velocity, alpha=momentum) if group["nesterov"] else velocity
