"""``make_outer``: the optimizer of global weights, whose gradients are what workers changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.optim.delayed_nesterov import DelayedNesterov
from thinwire.recipe import Outer


def make_outer(
    outer: Outer, parameters: Iterable[Tensor], averaged: Iterable[Tensor] = ()
) -> Optimizer:
    """An ordinary optimizer, so that checkpoints and replay know what to do with it. Tensors that
    are ``averaged``, such as buffers, move to the mean, whatever ``outer`` says."""
    groups: list[dict[str, Any]] = [{"params": list(parameters)}]
    if rest := list(averaged):
        groups.append({"params": rest, "lr": 1.0, "momentum": 0.0})
    if outer.momentum and outer.delay > 1:
        return DelayedNesterov(groups, lr=outer.lr, momentum=outer.momentum, delay=outer.delay)
    for group in groups[1:]:
        group["nesterov"] = False
    nesterov = outer.momentum > 0
    return torch.optim.SGD(groups, lr=outer.lr, momentum=outer.momentum, nesterov=nesterov)
