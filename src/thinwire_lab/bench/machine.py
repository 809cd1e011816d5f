"""``Machine`` that a benchmark ran on, and how much of it others used."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import torch

from thinwire import _native

BUSY = 0.1
"""A report warns if other processes used more than this part of the machine."""


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cpus: int
    isa: str
    torch: str
    date: str

    def __str__(self) -> str:
        return f"{self.cpu}, {self.cpus} CPUs, {self.isa}, torch {self.torch}, {self.date}"


def this_machine() -> Machine:
    """This machine, with the instruction set that the kernels use now."""
    return Machine(
        cpu=_cpu_model(),
        cpus=os.cpu_count() or 1,
        isa=_native.isa(),
        torch=torch.__version__,
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds since the start: of the whole machine, idle ones included, and of this process.

    All are zero where the system does not report them.
    """

    total: float
    idle: float
    own: float

    def others_since(self, before: Usage) -> float:
        """The share of the machine that other processes used since then, 0 to 1."""
        total = self.total - before.total
        free = (self.idle - before.idle) + (self.own - before.own)
        return min(1.0, max(0.0, 1.0 - free / total)) if total > 0 else 0.0


def usage_now(stat: Path = Path("/proc/stat")) -> Usage:
    try:
        words = stat.read_text().split("\n", 1)[0].split()
    except OSError:
        return Usage(0.0, 0.0, 0.0)
    # user nice system idle iowait irq softirq steal; what follows is counted in these already.
    seconds = [int(word) / os.sysconf("SC_CLK_TCK") for word in words[1:9]]
    return Usage(sum(seconds), seconds[3] + seconds[4], sum(os.times()[:2]))


def family_usage() -> Usage:
    """With the processor time of all child processes that have ended."""
    return replace(usage_now(), own=sum(os.times()[:4]))


def free_memory_nbytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """What new processes can use without swapping; None where the system does not report it."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    available = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((1024 * int(words[1]) for words in available), None)


def _cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
