"""How a learning rate falls: a family of frozen settings that give a factor.

``epoch`` is a fraction, too: 1.5 is the middle of the second one. ``part`` is how much of the whole
training is done, so that a shortened one falls at the same places. ``losses`` are those of all
epochs so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol


class Schedule(Protocol):
    @property
    def watches(self) -> bool:
        """Whether it looks at ``losses``, so that every worker has to know them."""

    def factor(self, epoch: float, *, part: float, losses: Sequence[float]) -> float:
        """What the learning rate is multiplied by."""


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
    """Falls to zero in a straight line."""

    watches: ClassVar[bool] = False

    def factor(self, epoch: float, *, part: float, losses: Sequence[float]) -> float:
        return max(0.0, 1.0 - part)


@dataclass(frozen=True, slots=True)
class Cosine:
    """Falls to zero slowly, fast, and slowly."""

    watches: ClassVar[bool] = False

    def factor(self, epoch: float, *, part: float, losses: Sequence[float]) -> float:
        return (1.0 + math.cos(math.pi * min(1.0, part))) / 2.0
