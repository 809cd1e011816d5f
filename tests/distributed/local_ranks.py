"""One rank that makes local steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import thinwire as tw
from tests.distributed.training import backward, loss_of, network, weights


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=3e-3)


class Rank:
    """One rank that trains alone between rounds."""

    def __init__(
        self,
        recipe: tw.Recipe | None,
        *,
        net: Callable[[], nn.Module] = network,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
        **options: Any,
    ) -> None:
        self.net: Any = net()
        self.optimizer = optimizer(self.net)
        self.local = tw.local_steps(self.net, self.optimizer, recipe, **options)

    def train(self, steps: range) -> list[bytes]:
        for step in steps:
            self.optimizer.zero_grad()
            backward(loss_of(self.net, step, dist.get_rank()))
            self.optimizer.step()
        return weights(self.net)
