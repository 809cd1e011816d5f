"""``use_momentum``: momentum acts once, in the feedback or in the optimizer.

A recipe that sends the optimizer's momentum finds it there (``shared_momentum.py``). A recipe that
keeps momentum of its own takes it over from a ``torch.optim.SGD``, with its weight decay; what was
taken is kept in the optimizer's groups, so that it is in its checkpoints.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.feedback.base import stages_of
from thinwire.feedback.momentum import Momentum
from thinwire.optim.sgd import SGD, StepArguments, after_closure, decay_of
from thinwire.optim.shared_momentum import MomentumSource, share_momentum
from thinwire.recipe import Recipe

TAKEN = "thinwire_taken_over"
"""Where a group keeps its momentum and weight decay once the feedback has them."""


def momentum_of(recipe: Recipe) -> Momentum | None:
    """The momentum that the recipe keeps; one of 0 is none."""
    stages = stages_of(recipe.push_feedback)
    return next((stage for stage in stages if isinstance(stage, Momentum) and stage.momentum), None)


def use_momentum(
    recipe: Recipe,
    optimizer: Optimizer | None,
    parameters: Mapping[str, Tensor],
    *,
    alone: bool = False,
    empty: Iterable[Tensor] = (),
) -> MomentumSource | None:
    """Let the recipe have the momentum of ``optimizer``, if it keeps or sends one.

    ``parameters`` are those whose gradients go through the recipe, by name; ``alone`` if the
    optimizer must not have others, but for those of which this rank has nothing: ``empty``.
    Returns where the momentum is that pushes carry. Refuses optimizers where this cannot be.
    """
    compressed = {id(p) for p in (*parameters.values(), *empty)} if alone else None
    _take_over_momentum(recipe, optimizer, compressed)
    return share_momentum(recipe, optimizer, parameters)


def _take_over_momentum(
    recipe: Recipe, optimizer: Optimizer | None, compressed: Collection[int] | None
) -> None:
    momentum = momentum_of(recipe)
    if momentum is None:
        return
    if optimizer is None:
        raise ConfigError("this recipe keeps the momentum: pass the optimizer, optimizer=...")
    if isinstance(optimizer, SGD):
        _check_own(optimizer, momentum)
        return
    if not isinstance(optimizer, torch.optim.SGD):
        raise ConfigError(
            f"this recipe keeps the momentum itself, which {type(optimizer).__name__} cannot give "
            "up: leave the recipe out, and one that fits the optimizer is chosen, or train with "
            "torch.optim.SGD"
        )
    groups = optimizer.param_groups
    for number, group in enumerate(groups):
        _check(number, group, momentum)
        _check_parameters(number, group, compressed)
    for group in groups:
        _take(optimizer, group, momentum)
    if _before_step not in optimizer._optimizer_step_pre_hooks.values():  # it may be taken again
        optimizer.register_step_pre_hook(_before_step)


def _check_own(optimizer: SGD, momentum: Momentum) -> None:
    for group in optimizer.param_groups:
        if group["weight_decay"] and group["momentum"] not in (0.0, momentum.momentum):
            raise ConfigError(
                f"the optimizer's weight decay has momentum {group['momentum']}, but the recipe "
                f"{momentum.momentum}: make them equal, or the optimizer's 0"
            )


def _check(number: int, group: dict[str, Any], momentum: Momentum) -> None:
    settings = group.get(TAKEN, group)
    factor, nesterov = float(settings["momentum"]), bool(settings["nesterov"])
    if (factor, nesterov) != (momentum.momentum, momentum.nesterov):
        raise ConfigError(
            f"group {number} of the optimizer has momentum {factor}, nesterov {nesterov}, but "
            f"the recipe {momentum.momentum}, {momentum.nesterov}, which would be another training "
            f"than yours: give the recipe momentum={factor}, nesterov={nesterov}"
        )
    for setting in ("dampening", "maximize", "fused"):
        if group.get(setting):
            raise ConfigError(f"{setting} cannot be left to a recipe that keeps momentum")


def _check_parameters(
    number: int, group: dict[str, Any], compressed: Collection[int] | None
) -> None:
    others = [p for p in group["params"] if compressed is not None and id(p) not in compressed]
    if any(parameter.requires_grad for parameter in others):
        raise ConfigError(
            f"group {number} of the optimizer has parameters that are not the model's, whose "
            "momentum would be lost: give them an optimizer of their own"
        )


def _take(optimizer: Optimizer, group: dict[str, Any], momentum: Momentum) -> None:
    if TAKEN in group:  # before, or in the run that a checkpoint is of
        return
    group[TAKEN] = {
        "momentum": momentum.momentum,
        "nesterov": momentum.nesterov,
        "weight_decay": float(group["weight_decay"]),
    }
    group["momentum"], group["nesterov"], group["weight_decay"] = 0.0, False, 0.0
    buffers = [optimizer.state[p].pop("momentum_buffer", None) for p in group["params"]]
    if any(buffer is not None for buffer in buffers):
        warnings.warn(
            "the recipe begins with no momentum: the optimizer's is dropped", stacklevel=4
        )


def _before_step(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> StepArguments | None:
    """Add the weight decay, which must not go through compression, with a momentum of its own."""
    for number, group in enumerate(optimizer.param_groups):
        _check_still_taken(number, group)
    return after_closure(args, kwargs, partial(_add_decay, optimizer))


def _check_still_taken(number: int, group: dict[str, Any]) -> None:
    if group["momentum"] or group["weight_decay"]:
        raise ConfigError(
            "the recipe has taken over this optimizer's momentum and weight decay, but they "
            "were set again: by a checkpoint of a run without compression, or by a scheduler "
            "that changes momentum (cycle_momentum=False stops that)"
        )
    if TAKEN not in group:
        raise ConfigError(
            f"group {number} was added to the optimizer after the recipe took over its momentum: "
            "add all groups before compression begins"
        )


@torch.no_grad()
def _add_decay(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if not group["lr"]:  # nothing moves; torch also takes such steps to look at an optimizer
            continue
        for parameter in group["params"]:
            if parameter.grad is not None:
                decay = decay_of(parameter, optimizer.state[parameter], group[TAKEN])
                if decay is not None:
                    parameter.grad.add_(decay)
