"""``OptimizerSettings`` and ``Schedule`` of the learning rate, as frozen settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from thinwire.checks import check_at_least, check_momentum
from thinwire.optim.lans import LANS


class Schedule(Protocol):
    @property
    def watches(self) -> bool:
        """Whether it uses ``losses``, so that every worker has to compute them."""

    def factor(self, epoch: float, *, part: float, losses: Sequence[float]) -> float:
        """The factor of the learning rate. ``epoch`` may be a fraction; ``part`` is the part of all
        training that is done; ``losses`` are the validation losses of all epochs so far."""


@dataclass(frozen=True, slots=True)
class Constant:
    watches: ClassVar[bool] = False

    def factor(self, epoch: float, *, part: float, losses: Sequence[float]) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Divide:
    """Divided by ``by`` at each of the parts ``at`` of the whole training."""

    at: tuple[float, ...]
    by: float = 10.0
    watches: ClassVar[bool] = False

    def factor(self, epoch: float, *, part: float, losses: Sequence[float]) -> float:
        return float(self.by ** -sum(part >= place for place in self.at))


@dataclass(frozen=True, slots=True)
class Decay:
    """Divided by ``by`` in every epoch after the first ``after`` (Zaremba et al. 2014)."""

    after: int
    by: float
    watches: ClassVar[bool] = False

    def factor(self, epoch: float, *, part: float, losses: Sequence[float]) -> float:
        return float(self.by ** -max(0, int(epoch) + 1 - self.after))


@dataclass(frozen=True, slots=True)
class Plateau:
    """Divided by ``by`` after every epoch that was not better than the best before it."""

    by: float
    watches: ClassVar[bool] = True

    def factor(self, epoch: float, *, part: float, losses: Sequence[float]) -> float:
        worse = sum(
            loss >= min(losses[:number]) for number, loss in enumerate(losses) if number > 0
        )
        return float(self.by**-worse)


@dataclass(frozen=True, slots=True)
class Line:
    """Falls linearly to zero."""

    watches: ClassVar[bool] = False

    def factor(self, epoch: float, *, part: float, losses: Sequence[float]) -> float:
        return max(0.0, 1.0 - part)


@dataclass(frozen=True, slots=True)
class Cosine:
    """Falls to zero along half a cosine."""

    watches: ClassVar[bool] = False

    def factor(self, epoch: float, *, part: float, losses: Sequence[float]) -> float:
        return (1.0 + math.cos(math.pi * min(1.0, part))) / 2.0


class OptimizerSettings(Protocol):
    @property
    def momentum(self) -> float:
        """The momentum that a recipe can take over; 0 if there is none."""

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
    """Biases and norms have no weight decay."""

    weight_decay: float = 0.01
    normalize_grad: bool = False
    momentum: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_at_least(self.weight_decay, 0.0, owner="LANSSettings", field="weight_decay")

    def make(self, net: nn.Module) -> Optimizer:
        groups = _groups(net, self.weight_decay)
        return LANS(groups, lr=1.0, normalize_grad=self.normalize_grad)


@dataclass(frozen=True, slots=True)
class AdamWSettings:
    """Biases and norms have no weight decay."""

    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    momentum: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        for beta in self.betas:
            check_momentum(beta, owner="AdamWSettings")
        check_at_least(self.weight_decay, 0.0, owner="AdamWSettings", field="weight_decay")

    def make(self, net: nn.Module) -> Optimizer:
        return torch.optim.AdamW(_groups(net, self.weight_decay), lr=1.0, betas=self.betas)


def _groups(net: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    matrices = [p for p in net.parameters() if p.ndim > 1]
    vectors = [p for p in net.parameters() if p.ndim <= 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
