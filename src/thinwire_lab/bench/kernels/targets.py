"""``Target``: a ratio that a kernel must reach, and the verdict on a run.

Targets are ratios within one run: absolute times on a shared machine mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

BEYOND_CACHES = 10_000_000
"""Elements from which memory is the limit, which the ratios to memcpy are about."""


class Kind(Enum):
    """What a target bounds."""

    MEMCPY = "x memcpy's time"
    TORCH = "x faster than torch"
    TUNED = "x faster than tuned torch"
    STEP = "x the time of the plain step"
    THREADS = "x faster than one thread"
    INDEX_BITS = "bits per index"


class Verdict(Enum):
    HOLDS = "holds"
    UNSETTLED = "holds for either the best or the median time"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class Target:
    kind: Kind
    limit: float

    def judge(self, best: float, median: float) -> Verdict:
        passes = {self._passes(best), self._passes(median)}
        if len(passes) == 2:
            return Verdict.UNSETTLED
        return Verdict.HOLDS if passes == {True} else Verdict.MISSED

    @property
    def is_ceiling(self) -> bool:
        return self.kind in (Kind.MEMCPY, Kind.STEP, Kind.INDEX_BITS)

    def _passes(self, value: float) -> bool:
        return value <= self.limit if self.is_ceiling else value >= self.limit


def targets_for(case: str, numel: int) -> tuple[Target, ...]:
    """The targets of the case with this name. Small tensors fit into caches and have few."""
    table = _LARGE if numel >= BEYOND_CACHES else _MEDIUM if numel >= 1_000_000 else {}
    return tuple(Target(kind, limit) for kind, limit in table.get(case, {}).items())


_DITHER = {Kind.MEMCPY: 1.3, Kind.TORCH: 12.0}
_TWO_THREADS = {Kind.THREADS: 1.7}
_LARGE = {
    "1-bit step": {Kind.MEMCPY: 1.15, Kind.TORCH: 15.0},
    "1-bit step, 2 threads": _TWO_THREADS,
    # It reads three tensors as the DGC step does, and reading is what costs.
    "1-bit step with momentum": {Kind.MEMCPY: 1.8, Kind.TORCH: 12.0},
    "1-bit step with Adam's momentum": {Kind.STEP: 1.35, Kind.TORCH: 12.0},
    "1-bit add": {Kind.MEMCPY: 0.7},
    "1-bit add, 2 threads": _TWO_THREADS,
    "1-bit server, sum of 2": {Kind.MEMCPY: 0.9},
    "top-k 0.1 %": {Kind.MEMCPY: 0.65, Kind.TORCH: 30.0, Kind.INDEX_BITS: 11.6},
    "top-k step": {Kind.MEMCPY: 1.15},
    "chunk top-k step": {Kind.MEMCPY: 1.6},
    "DGC step": {Kind.MEMCPY: 1.8},
    "DGC step, 2 threads": _TWO_THREADS,
    "AdamW": {Kind.TUNED: 1.0},
    "AdamW by momentum": {Kind.TUNED: 1.0},
    "dither 2 bit": _DITHER,
    "dither 4 bit": _DITHER,
    "dither 8 bit": _DITHER,
}
_MEDIUM = {"top-k 0.1 %": {Kind.TORCH: 12.0, Kind.INDEX_BITS: 11.6}}
