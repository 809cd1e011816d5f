"""``ShardPlaces``: gradients of a network of fully_shard, of which each rank has its part."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire.gradient.network import local_part
from thinwire.optim.adam import is_native


class ShardPlaces:
    """See ``GradientPlaces``. fully_shard gives every gradient memory that is its own; what is not
    float32 on the CPU is copied there and back."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._copies: dict[str, Tensor] = {}

    def begin(self, first: str) -> None:
        del first
        self._copies.clear()

    def own(self, name: str, *, in_hook: bool) -> Tensor:
        del in_hook
        parameter = self._parameters[name]
        if parameter.grad is None:  # not used in this step, but something may be owed for it
            parameter.grad = torch.zeros_like(parameter)
        part = local_part(parameter.grad).detach()
        if is_native(part):
            return part
        copy = part.to("cpu", torch.float32).contiguous()
        self._copies[name] = copy
        return copy

    @torch.no_grad()
    def remember(self) -> None:
        for name, mean in self._copies.items():
            grad = self._parameters[name].grad
            if grad is not None:
                local_part(grad).copy_(mean)
        self._copies.clear()
