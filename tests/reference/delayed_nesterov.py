"""Delayed Nesterov momentum for one number, as Liu et al. 2024 write it: one update at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DelayedNesterov:
    """Of ``x``, in float64. Updates are shares: the change of one worker of so many over their
    number."""

    x: float
    lr: float
    momentum: float
    delay: int
    seen: int = 0
    total: float = 0.0
    m: float = 0.0

    def step(self, g: float) -> None:
        self.seen += 1
        self.total += g
        if self.seen % self.delay:
            self.x -= self.lr * g
            return
        self.m = self.momentum * self.m + self.total
        self.x -= self.lr * (g + self.momentum * self.m)
        self.total = 0.0
