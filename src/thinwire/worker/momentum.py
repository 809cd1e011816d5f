"""Momentum acts once: in the feedback or in the optimizer (algorithms.md P2).

A recipe that keeps momentum takes it over from a ``torch.optim.SGD``, with its weight decay. What
was taken is kept in the optimizer's groups, so that it is in its checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.feedback.base import stages_of
from thinwire.feedback.momentum import Momentum
from thinwire.optim.sgd import SGD, decay_of
from thinwire.recipe import Recipe

TAKEN = "thinwire_taken_over"
"""Where a group keeps its momentum and weight decay once the feedback has them."""


def momentum_of(recipe: Recipe) -> Momentum | None:
    stages = stages_of(recipe.push_feedback)
    return next((stage for stage in stages if isinstance(stage, Momentum)), None)


def take_over_momentum(recipe: Recipe, optimizer: Optimizer | None) -> None:
    """Leave momentum to the recipe, if that keeps it; refuse optimizers where this cannot be."""
    momentum = momentum_of(recipe)
    if momentum is None:
        return
    if optimizer is None:
        raise ConfigError("this recipe keeps the momentum: pass the optimizer, optimizer=...")
    if isinstance(optimizer, SGD):
        return
    if not isinstance(optimizer, torch.optim.SGD):
        raise ConfigError(
            f"this recipe keeps the momentum itself, which {type(optimizer).__name__} cannot give "
            "up: use torch.optim.SGD or tw.optim.SGD, or a recipe without momentum"
        )
    for group in optimizer.param_groups:
        _take(group, momentum)
    optimizer.register_step_pre_hook(_before_step)


def _take(group: dict[str, Any], momentum: Momentum) -> None:
    if TAKEN in group:  # a checkpoint was loaded before
        return
    found = (float(group["momentum"]), bool(group["nesterov"]))
    if group["momentum"] and found != (momentum.momentum, momentum.nesterov):
        raise ConfigError(
            f"the optimizer has momentum {found[0]}, nesterov {found[1]}, but the recipe "
            f"{momentum.momentum}, {momentum.nesterov}: make them equal, or the optimizer's 0"
        )
    if group.get("dampening") or group.get("maximize"):
        raise ConfigError("dampening and maximize cannot be left to a recipe that keeps momentum")
    group[TAKEN] = {
        "momentum": momentum.momentum,
        "nesterov": momentum.nesterov,
        "weight_decay": float(group["weight_decay"]),
    }
    group["momentum"], group["nesterov"], group["weight_decay"] = 0.0, False, 0.0


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Add the weight decay, which must not go through compression, with a momentum of its own."""
    for group in optimizer.param_groups:
        if group["momentum"] or group["weight_decay"] or TAKEN not in group:
            raise ConfigError(
                "the recipe has taken over this optimizer's momentum and weight decay, but they "
                "were set again: by a checkpoint of a run without compression, or by a scheduler "
                "that changes momentum (cycle_momentum=False stops that)"
            )
        for parameter in group["params"]:
            if parameter.grad is not None:
                decay = decay_of(parameter, optimizer.state[parameter], group[TAKEN])
                if decay is not None:
                    parameter.grad.add_(decay)
