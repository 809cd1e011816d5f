"""``measure``: time cases in turns, once per round, so that a disturbance affects all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from thinwire import _native
from thinwire.checks import check_positive, check_whole
from thinwire.errors import ConfigError
from thinwire_lab.bench.kernels.cases import Case

Watcher = Callable[[int, str], None]
"""Called with the round, from 0 (the warm-up), and the case that comes next."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop: after this many rounds, and begin none after this many seconds."""

    rounds: int
    seconds: float

    def __post_init__(self) -> None:
        check_whole(self.rounds, least=1, owner="bench", field="rounds")
        check_positive(self.seconds, owner="bench", field="seconds")


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds that the same work took, round by round."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class Measured:
    """A case with its samples by variant, and the payload that it made, if it makes one."""

    case: Case
    samples: dict[str, Samples]
    payload: bytes | None


def measure(cases: Sequence[Case], *, rounds: int, ends: float, watch: Watcher) -> list[Measured]:
    """Run all variants of all cases in rounds, after one that does not count.

    At least one round; none begins after ``ends``, a time of ``time.perf_counter``.
    """
    payloads = _warm_up(cases, watch)
    seconds: dict[tuple[str, str], list[float]] = {}
    for round_ in range(1, rounds + 1):
        # Every other round goes backwards, so that no case always has the same cache contents.
        for case in cases if round_ % 2 else reversed(cases):
            watch(round_, case.name)
            for variant, took in _time_variants(case):
                seconds.setdefault((case.name, variant), []).append(took)
        if time.perf_counter() >= ends:
            break
    return [
        Measured(case, _samples_of(case, seconds), payload)
        for case, payload in zip(cases, payloads, strict=True)
    ]


def _warm_up(cases: Sequence[Case], watch: Watcher) -> list[bytes | None]:
    payloads: list[bytes | None] = []
    for case in cases:
        watch(0, case.name)
        _native.set_threads(case.threads)
        result = {variant: work() for variant, work in case.variants().items()}["ours"]
        # A copy: all cases write into the same memory.
        payloads.append(bytes(result) if isinstance(result, bytearray | memoryview) else None)
    return payloads


def _time_variants(case: Case) -> Iterator[tuple[str, float]]:
    _native.set_threads(case.threads)
    for variant, work in case.variants().items():
        began = time.perf_counter()
        work()
        yield variant, time.perf_counter() - began


def _samples_of(case: Case, seconds: dict[tuple[str, str], list[float]]) -> dict[str, Samples]:
    return {v: Samples(tuple(seconds[case.name, v])) for v in case.variants()}


@contextmanager
def one_thread(isa: str | None) -> Iterator[None]:
    """Kernels with the instruction set named, or as they are, and torch on one thread."""
    before = _native.isa(), _native.threads(), torch.get_num_threads()
    if isa is not None and not (_native.can_run(isa) and _native.set_isa(isa)):
        raise ConfigError(f"this machine cannot run the {isa} kernels")
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _native.set_isa(before[0])
        _native.set_threads(before[1])
        torch.set_num_threads(before[2])
