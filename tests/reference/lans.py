"""LANS for one parameter tensor in float64, line by line from the formula."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass
class Lans:
    """One block. ``step`` changes ``x``; ``r`` and ``c`` are the two terms of the last step."""

    x: Floats
    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    normalize_grad: bool = True
    lower: float = 0.0
    upper: float = math.inf
    t: int = 0
    m: Floats = field(init=False)
    v: Floats = field(init=False)
    r: Floats = field(init=False)
    c: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.m, self.v = np.zeros_like(self.x), np.zeros_like(self.x)

    def step(self, g: Floats) -> None:
        self.t += 1
        if self.normalize_grad and norm(g) != 0:
            g = g / (norm(g) + self.eps)
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
        mh = self.m / (1 - self.beta1**self.t)
        vh = self.v / (1 - self.beta2**self.t)
        d = np.sqrt(vh) + self.eps
        self.r = mh / d + self.weight_decay * self.x
        self.c = g / d + self.weight_decay * self.x
        blend = self.beta1 * self.ratio(self.r) * self.r
        blend = blend + (1 - self.beta1) * self.ratio(self.c) * self.c
        self.x = self.x - self.lr * blend

    def ratio(self, u: Floats) -> float:
        if norm(self.x) == 0 or norm(u) == 0:
            return 1.0
        return self.phi() / norm(u)

    def phi(self) -> float:
        return min(max(norm(self.x), self.lower), self.upper)


def norm(x: Floats) -> float:
    return math.sqrt(math.fsum(float(value) ** 2 for value in x.ravel()))
