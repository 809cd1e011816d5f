"""``GradientWatch``: notices if a script clips what came back from the exchange.

That is not a gradient: it holds what was delayed, or the optimizer's momentum, and its norm is
larger. ``clip_grad_norm_`` would then make all steps smaller than those of dense training.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.choice import delays
from thinwire.feedback.momentum import shared_momentum
from thinwire.gradient.network import local_part
from thinwire.gradient.pieces import Key
from thinwire.optim.sgd import StepArguments, after_closure
from thinwire.recipe import Recipe

STEPS, ELEMENTS = 1000, 4096
"""How many steps are looked at, and of one tensor: later ones are like these."""

_ATTRIBUTE = "_thinwire_gradient_watch"
"""Where an optimizer has its watch: it may be given again, with another model."""


class GradientWatch:
    """Compares one number of the gradients after the exchange with what ``optimizer`` gets.

    Make it before anything else that changes gradients when the optimizer steps.
    """

    def __init__(
        self, recipe: Recipe, optimizer: Optimizer, parameters: Mapping[str, Tensor]
    ) -> None:
        self._stage = shared_momentum(recipe.push_feedback)
        self._parameters = parameters
        self._keys = [Key(name, tuple(local_part(p).shape)) for name, p in parameters.items()]
        self._seen: tuple[str, int, float] | None = None
        self._done = not delays(recipe)
        before = getattr(optimizer, _ATTRIBUTE, None)
        if isinstance(before, GradientWatch):
            before.detach()
        self._handle = optimizer.register_step_pre_hook(self._before_step)
        setattr(optimizer, _ATTRIBUTE, self)

    def detach(self) -> None:
        """Leave the optimizer alone from now on."""
        self._handle.remove()

    def look(self, step: int) -> None:
        """All gradients of this step came back: remember a large element of one."""
        self._seen = None
        if self._done or step > STEPS:
            return
        for key in self._keys:
            flat = self._flat_grad(key.name)
            if flat is not None and flat.numel() and self._is_late(key, step):
                flat = flat[:ELEMENTS]
                place = int(flat.abs().argmax())
                self._seen = key.name, place, float(flat[place])
                return

    def _flat_grad(self, name: str) -> Tensor | None:
        grad = self._parameters[name].grad
        return None if grad is None else local_part(grad).detach().reshape(-1)

    def _is_late(self, key: Key, step: int) -> bool:
        return len(key.shape) > 1 and (self._stage is None or self._stage.travels(key, step=step))

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> StepArguments | None:
        return after_closure(args, kwargs, self._check)

    def _check(self) -> None:
        if self._seen is None:
            return
        (name, place, value), self._seen = self._seen, None
        flat = self._flat_grad(name)
        if flat is None or not _is_clipped(value, float(flat[place])):
            return
        self._done = True
        what = "hold what was delayed" if self._stage is None else "are the optimizer's momentum"
        warnings.warn(
            "gradients were changed after the exchange, by clip_grad_norm_ perhaps: with this "
            f"recipe they {what}, and to clip that slows training down. Leave it out, and give the "
            "recipe clip_norm=..., which clips gradients before they are sent",
            stacklevel=6,
        )


def _is_clipped(before: float, after: float) -> bool:
    """Whether they differ by a factor that is no GradScaler's, which is a power of two."""
    if before == after or not before or not after:
        return False
    return math.frexp(after / before)[0] != 0.5
