"""Deep Gradient Compression and local clipping written out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.reference.sparse import largest

Floats = NDArray[np.float32]


@dataclass
class Dgc:
    """One tensor on one worker."""

    d: int
    k: int
    m: float = 0.9
    nesterov: bool = False
    masking: bool = True
    u: Floats = field(init=False)
    v: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.u, self.v = np.zeros(self.d, np.float32), np.zeros(self.d, np.float32)

    def step(self, g: Floats) -> Floats:
        """What is sent for the gradient ``g``, as a dense vector."""
        m = np.float32(self.m)
        for j in range(self.d):
            if self.nesterov:
                self.u[j] = (self.u[j] + g[j]) * m
                self.v[j] = self.v[j] + (self.u[j] + g[j])
            else:
                self.u[j] = self.u[j] * m + g[j]
                self.v[j] = self.v[j] + self.u[j]
        sent = np.zeros(self.d, np.float32)
        for j in largest(self.v, self.k):
            sent[j] = self.v[j]
            self.v[j] = 0
            if self.masking:
                self.u[j] = 0
        return sent


def clipped(g: Floats, *, norm: float, threshold: float, workers: int) -> Floats:
    """Local clipping of a gradient that is not yet divided by the workers (1.4)."""
    gain = min(1.0, workers**0.5 * threshold / (norm + 1e-6))
    return g * np.float32(gain)
