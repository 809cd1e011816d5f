"""Simulated time: when each worker has its gradient. Chance comes from a seed."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch

from thinwire.errors import ConfigError
from thinwire.settings import check_positive


class Timetable:
    """Worker i takes 1 / ``speeds[i]`` seconds for a gradient, more or less by up to the fraction
    ``jitter`` of that. Messages take no time."""

    def __init__(self, speeds: Sequence[float], *, jitter: float, seed: int) -> None:
        for speed in speeds:
            check_positive(speed, owner="VirtualCluster", field="every one of speeds")
        if not 0.0 <= jitter < 1.0:
            raise ConfigError(f"VirtualCluster: jitter must be in [0, 1), got {jitter}")
        self._speeds, self._jitter = tuple(speeds), jitter
        self._chance = torch.Generator().manual_seed(seed)
        self._ends: list[tuple[float, int]] = []
        self.now = 0.0

    def begin(self, worker: int) -> None:
        """Let a worker begin a gradient now."""
        chance = 2.0 * torch.rand((), dtype=torch.float64, generator=self._chance).item() - 1.0
        seconds = (1.0 + self._jitter * chance) / self._speeds[worker]
        heapq.heappush(self._ends, (self.now + seconds, worker))

    def next(self) -> int:
        """Go on to when the next gradient is there, and say whose. The lower rank among equals."""
        self.now, worker = heapq.heappop(self._ends)
        return worker
