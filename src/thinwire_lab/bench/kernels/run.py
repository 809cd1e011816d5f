"""``bench_kernels``: a whole run of the kernel benchmark, from buffers to a report."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from thinwire.errors import ConfigError
from thinwire_lab.bench.kernels.buffers import make_buffers
from thinwire_lab.bench.kernels.cases import kernel_cases
from thinwire_lab.bench.machine import this_machine, usage_now
from thinwire_lab.bench.report import Report, Row, make_rows
from thinwire_lab.bench.rounds import Limits, measure, one_thread

Watcher = Callable[[int, int, str], None]
"""Called with the size, the round (0 is the warm-up) and the case that comes next."""


@dataclass(frozen=True, slots=True)
class KernelBench:
    """What to measure.

    ``numels`` are sizes in elements. The rounds of ``limits`` are for each size, its seconds for
    all together. ``isa`` is the instruction set of the kernels, None for the one in use.
    """

    numels: tuple[int, ...]
    limits: Limits
    isa: str | None = None

    def __post_init__(self) -> None:
        for numel in self.numels:
            if numel < 1000 or numel % 8:
                raise ConfigError(f"bench: numel must be a multiple of 8 from 1000 on, got {numel}")


def bench_kernels(bench: KernelBench, watch: Watcher) -> Report:
    """Measure sizes one after the other, smallest first; the time left is shared evenly."""
    ends = time.perf_counter() + bench.limits.seconds
    before, sizes = usage_now(), sorted(set(bench.numels))
    rows: list[Row] = []
    with one_thread(bench.isa), ThreadPoolExecutor(1) as helper:
        for i, numel in enumerate(sizes):
            now = time.perf_counter()
            share = (ends - now) / (len(sizes) - i)
            rows += _bench_size(numel, bench.limits.rounds, now + share, helper, watch)
        return Report(this_machine(), usage_now().others_since(before), tuple(rows))


def _bench_size(
    numel: int, rounds: int, ends: float, helper: ThreadPoolExecutor, watch: Watcher
) -> list[Row]:
    watch(numel, 0, "preparing")
    cases = kernel_cases(make_buffers(numel), helper)
    measured = measure(cases, rounds=rounds, ends=ends, watch=lambda r, name: watch(numel, r, name))
    return make_rows(numel, measured)
