"""``make_outer``: the optimizer of global weights, whose gradients are what workers changed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.optim.delayed_nesterov import DelayedNesterov
from thinwire.recipe import Outer


def make_outer(outer: Outer, parameters: Iterable[Tensor]) -> Optimizer:
    """An ordinary optimizer, so that checkpoints and replay know what to do with it."""
    weights = list(parameters)
    if outer.momentum and outer.delay > 1:
        return DelayedNesterov(weights, lr=outer.lr, momentum=outer.momentum, delay=outer.delay)
    nesterov = outer.momentum > 0
    return torch.optim.SGD(weights, lr=outer.lr, momentum=outer.momentum, nesterov=nesterov)
