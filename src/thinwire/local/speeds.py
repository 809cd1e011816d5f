"""``Speeds``: how fast workers are, told in their rounds, and how many steps a round of each has.

As Liu et al. 2024 do it (DyLU): a worker makes as many steps in a round as it can while the fastest
one makes its own. Knows no clock: times come in as ``now``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

SPEEDS = "thinwire/speeds"
"""The name of the tensor that tells them, among those of the network."""

_FORGOTTEN_ROUNDS = 4
"""A speed that has not changed in so many rounds is of a worker that is away."""


class Stopwatch:
    """Seconds of steps, without those in which it stands still."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._seconds, self._steps = 0.0, 0

    def run(self, now: float) -> None:
        if self._since is None:
            self._since = now

    def stop(self, now: float) -> None:
        if self._since is not None:
            self._seconds += now - self._since
            self._since = None

    def count(self) -> None:
        """A step is done. The first one does not count: it is not known when it began."""
        self._steps += self._since is not None

    def take(self, now: float) -> float | None:
        """Steps in a second since this was called last; None if there were none."""
        if self._since is not None:
            self.stop(now)
            self.run(now)
        seconds, steps = self._seconds, self._steps
        self._seconds, self._steps = 0.0, 0
        return steps / seconds if steps and seconds > 0.0 else None


class Speeds:
    """A tensor that travels with the weights, as a buffer: element r, in steps in a second, is
    changed by worker r alone. So all know the speeds of all, without a message of their own."""

    def __init__(self, rank: int, workers: int) -> None:
        self.sent = torch.zeros(workers)
        """What this worker would make of the tensor, as its network is of the weights."""
        self._rank, self._workers = rank, workers
        self._own, self._told = 0.0, 0.0
        self._seen, self._since = torch.zeros(workers), [0] * workers

    def tell(self, known: Tensor, speed: float | None) -> None:
        """Before a round: let what is sent be this worker's speed, which is averaged with the one
        before. ``known`` is the tensor as the servers have it."""
        if speed is not None:
            self._own = (self._own + speed) / 2 if self._own else speed
        # A mean over all workers is to move it by the whole difference to what is told already,
        # also if that is still on its way. If some of that was lost, it is noticed by and by.
        self._told += (float(known[self._rank]) - self._told) / 4
        self.sent.copy_(known)
        self.sent[self._rank] += self._workers * (self._own - self._told)
        self._told = self._own

    def forget_told(self, known: Tensor) -> None:
        """What this worker told before is in ``known``, or was lost with it."""
        self._told = float(known[self._rank])

    def steps(self, known: Tensor, *, most: int, least: int) -> int:
        """Of the round that begins: ``most`` for the fastest worker, and while no one is known."""
        for rank in range(self._workers):
            self._since[rank] = 0 if known[rank] != self._seen[rank] else self._since[rank] + 1
        self._seen.copy_(known)
        others = [
            float(known[rank])
            for rank in range(self._workers)
            if rank != self._rank and self._since[rank] < _FORGOTTEN_ROUNDS
        ]
        fastest = max([self._own, *others])
        return most if not self._own else max(least, int(most * (self._own / fastest)))

    def state_dict(self) -> dict[str, Any]:
        """All that the next rounds depend on, but for ``sent``."""
        return {
            "own": self._own,
            "told": self._told,
            "seen": self._seen.clone(),
            "since": list(self._since),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a copy of what ``state_dict`` returned."""
        self._own, self._told = float(state["own"]), float(state["told"])
        self._seen.copy_(state["seen"])
        self._since = list(state["since"])
