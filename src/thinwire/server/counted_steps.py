"""``CountedSteps``: which steps of a worker were counted for a piece, so that none counts twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST_SKIPPED = 256
"""Steps back for which it is known whether they were counted: far more than are ever in flight."""

_ALL = (1 << MOST_SKIPPED) - 1


@dataclass(frozen=True, slots=True)
class CountedSteps:
    """The newest counted step of a worker, and the version that its last push was computed on.

    ``skipped`` says which steps before it were not counted: bit 0 is the step just before, and so
    on. If the refusal of one of them is lost, the worker sends it again, and must not be told that
    it was counted. There is one of these for every worker and piece, so it must be small.
    """

    step: int
    version: int
    skipped: int = 0

    @classmethod
    def without(cls, step: int, version: int, steps: Iterable[int]) -> CountedSteps:
        """All steps up to ``step`` were counted, but not these."""
        behind = (step - skipped - 1 for skipped in steps)
        return cls(step, version, sum(1 << bit for bit in behind if 0 <= bit < MOST_SKIPPED))

    @classmethod
    def after(cls, before: CountedSteps | None, step: int, version: int) -> CountedSteps:
        """``before``, and the push of ``step`` on ``version``."""
        last, skipped = (-1, 0) if before is None else (before.step, before.skipped)
        ahead = step - last
        if ahead < 0:  # one that was skipped is counted after all
            return cls(last, version, skipped & ~(1 << (-ahead - 1)))
        between = (1 << min(ahead - 1, MOST_SKIPPED)) - 1
        earlier = skipped << ahead if ahead < MOST_SKIPPED else 0
        return cls(step, version, (between | earlier) & _ALL)

    def has(self, step: int) -> bool:
        """Whether ``step`` was counted; True if it is too long ago to know."""
        behind = self.step - step
        return behind == 0 or (behind > 0 and not self.skipped >> (behind - 1) & 1)
