"""A network with all that a round must tell apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Normed(nn.Module):
    """Float buffers, a counter, a frozen, a tied and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norm = nn.BatchNorm1d(20)
        self.first = nn.Linear(20, 20)
        self.tied = nn.Linear(20, 20)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(20, 20).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.frozen(self.tied(self.first(self.norm(x)))))
        return out
