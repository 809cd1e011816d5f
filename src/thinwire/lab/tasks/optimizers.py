"""Optimizers as frozen settings. The learning rate is set anew in every step, so it is not here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from thinwire.optim.lans import LANS
from thinwire.settings import check_at_least, check_momentum


class OptimizerSettings(Protocol):
    @property
    def momentum(self) -> float:
        """What a recipe that keeps momentum takes over; 0 if there is nothing to take."""

    def make(self, net: nn.Module) -> Optimizer: ...


@dataclass(frozen=True, slots=True)
class SGDSettings:
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_momentum(self.momentum, owner="SGDSettings")
        check_at_least(self.weight_decay, 0.0, owner="SGDSettings", field="weight_decay")

    def make(self, net: nn.Module) -> Optimizer:
        return torch.optim.SGD(
            net.parameters(), lr=1.0, momentum=self.momentum, weight_decay=self.weight_decay
        )


@dataclass(frozen=True, slots=True)
class LANSSettings:
    """Biases and norms do not decay."""

    weight_decay: float = 0.01
    normalize_grad: bool = False
    momentum: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_at_least(self.weight_decay, 0.0, owner="LANSSettings", field="weight_decay")

    def make(self, net: nn.Module) -> Optimizer:
        matrices = [p for p in net.parameters() if p.ndim > 1]
        vectors = [p for p in net.parameters() if p.ndim <= 1]
        groups = [
            {"params": matrices, "weight_decay": self.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return LANS(groups, lr=1.0, normalize_grad=self.normalize_grad)
