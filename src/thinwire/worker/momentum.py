"""Momentum acts once: in the feedback or in the optimizer (algorithms.md P2)."""

from __future__ import annotations

from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.feedback.base import stages_of
from thinwire.feedback.momentum import Momentum
from thinwire.optim.sgd import SGD
from thinwire.recipe import Recipe


def keeps_momentum(recipe: Recipe) -> bool:
    return any(isinstance(stage, Momentum) for stage in stages_of(recipe.push_feedback))


def check_momentum_is_kept_once(recipe: Recipe, optimizer: Optimizer) -> None:
    """Refuse an optimizer whose own momentum would be added to the recipe's."""
    if isinstance(optimizer, SGD) or not keeps_momentum(recipe):
        return
    if any(group.get("momentum") or "betas" in group for group in optimizer.param_groups):
        raise ConfigError(
            "this recipe keeps the momentum itself: use tw.optim.SGD, or torch.optim.SGD with "
            "momentum=0"
        )
