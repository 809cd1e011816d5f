"""``LinksReport``: step times and ratios by rate and case, as JSON and as a plot."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire_lab.bench.hosts import burst_nbytes
from thinwire_lab.bench.links.cases import (
    DDP,
    HSDP,
    HSDP_SILENT,
    NO_DELAY,
    NONE,
    LinkCase,
    LinkModel,
    delay_seconds_of,
    rate_of,
)
from thinwire_lab.bench.machine import Machine
from thinwire_lab.bench.report import Json, Ratio
from thinwire_lab.bench.rounds import Samples

Blocks = Mapping[tuple[str, LinkCase], Sequence["Block"]]
"""By rate and case."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some steps of a case. Seconds are those of the slowest host, one for each step, or of a step
    on average, one for each round.

    The rest is per step and of one host on average: bytes that passed its interface, processor time
    of its trainer, and of its server.
    """

    seconds: tuple[float, ...]
    sent_nbytes: float
    received_nbytes: float
    cpu_seconds: float
    server_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A case on a link.

    ``ddp`` is the time of DDP fp32 over its own: how many times faster it is. ``none`` is its time
    over that without communication. Of sharded networks they are torch's HSDP, and a network whose
    replicas send each other nothing. ``link`` is the part of the link that its best step uses, in
    the direction that has more bytes.
    """

    rate: str
    case: LinkCase
    samples: Samples
    sent_nbytes: float
    received_nbytes: float
    cpu: Samples
    server_cpu: Samples
    ddp: Ratio | None
    none: Ratio | None

    @property
    def computing(self) -> float | None:
        """The share of its time that a host computes: that without communication over its own."""
        return None if self.none is None else 1 / self.none.median

    @property
    def link(self) -> float | None:
        bits = rate_of(self.rate)
        if bits is None:
            return None
        return 8 * max(self.sent_nbytes, self.received_nbytes) / bits / self.samples.best

    def as_json(self) -> Json:
        return {
            "rate": self.rate,
            "case": self.case.name,
            "label": self.case.label,
            "recipe": self.case.recipe,
            "exchange": self.case.exchange,
            "rounds": self.case.rounds and asdict(self.case.rounds),
            "best_ms": 1e3 * self.samples.best,
            "median_ms": 1e3 * self.samples.median,
            "times_faster_than_ddp": self.ddp and asdict(self.ddp),
            "times_of_no_communication": self.none and asdict(self.none),
            "computing": self.computing,
            "sent_nbytes": self.sent_nbytes,
            "received_nbytes": self.received_nbytes,
            "link_used": self.link,
            "cpu_ms": 1e3 * self.cpu.median,
            "server_cpu_ms": 1e3 * self.server_cpu.median,
            "seconds": list(self.samples.seconds),
        }


@dataclass(frozen=True, slots=True)
class LinksReport:
    """All rows. ``others`` is the share of the machine that other processes used, 0 to 1;
    ``interrupted`` means that rounds are missing.
    """

    machine: Machine
    model: LinkModel
    hosts: int
    steps: int
    others: float
    interrupted: bool
    rows: tuple[LinkRow, ...]
    delay: str = NO_DELAY
    shards: int = 1

    def rates(self) -> list[str]:
        return list(dict.fromkeys(row.rate for row in self.rows))

    def as_json(self) -> Json:
        return {
            "machine": asdict(self.machine),
            "model": {**asdict(self.model), "backward_ms": self.model.synthetic_ms},
            "numel": self.model.numel,
            "dense_nbytes": self.model.nbytes,
            "hosts": self.hosts,
            "shards": self.shards,
            "steps": self.steps,
            "round_trip_ms": 1e3 * delay_seconds_of(self.delay),
            "burst_nbytes": {rate: _burst(rate) for rate in self.rates()},
            "others": self.others,
            "interrupted": self.interrupted,
            "rows": [row.as_json() for row in self.rows],
        }


def _burst(rate: str) -> int | None:
    bits = rate_of(rate)
    return None if bits is None else burst_nbytes(bits)


def make_link_rows(blocks: Blocks) -> tuple[LinkRow, ...]:
    """One row for each case and rate that was measured at least once."""
    samples = {
        key: Samples(tuple(s for block in some for s in block.seconds))
        for key, some in blocks.items()
        if some
    }
    return tuple(_make_row(key, blocks[key], samples) for key in samples)


def _make_row(
    key: tuple[str, LinkCase],
    blocks: Sequence[Block],
    samples: Mapping[tuple[str, LinkCase], Samples],
) -> LinkRow:
    rate, case = key
    dense, nothing = (HSDP, HSDP_SILENT) if case.sharded else (DDP, NONE)
    seconds, ddp, none = samples[key], samples.get((rate, dense)), samples.get((rate, nothing))
    return LinkRow(
        rate=rate,
        case=case,
        samples=seconds,
        sent_nbytes=sum(block.sent_nbytes for block in blocks) / len(blocks),
        received_nbytes=sum(block.received_nbytes for block in blocks) / len(blocks),
        cpu=Samples(tuple(block.cpu_seconds for block in blocks)),
        server_cpu=Samples(tuple(block.server_cpu_seconds for block in blocks)),
        ddp=None if ddp is None else Ratio.of(ddp, seconds),
        none=None if none is None else Ratio.of(seconds, none),
    )


def check_plotting() -> None:
    """Refuse before a long run, not after it."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise ConfigError("bench: a plot needs matplotlib: pip install 'thinwire[plot]'") from error


def plot_links(report: LinksReport, file: Path) -> None:
    """Best step times, on a logarithmic scale; lower is better."""
    matplotlib: Any = importlib.import_module("matplotlib.figure")
    figure = matplotlib.Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots()
    axes.set_prop_cycle(color=importlib.import_module("matplotlib").colormaps["tab20"].colors)
    rates = report.rates()
    for case in dict.fromkeys(row.case for row in report.rows):
        rows = [row for row in report.rows if row.case == case]
        places, times = _line(rates, rows)
        axes.plot(
            places, times, marker="o", linestyle="-" if case.recipe else "--", label=case.label
        )
    axes.set_yscale("log")
    axes.set_xticks(range(len(rates)), rates)
    axes.set_xlabel("link of each host")
    axes.set_ylabel("best step, ms")
    title = f"{report.model.name}, {report.model.numel:,} parameters, {report.hosts} hosts"
    axes.set_title(title if report.delay == NO_DELAY else f"{title}, {report.delay} round trip")
    axes.grid(visible=True, which="both", alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(file, dpi=150)


def _line(rates: Sequence[str], rows: Sequence[LinkRow]) -> tuple[list[int], list[float]]:
    return [rates.index(row.rate) for row in rows], [1e3 * row.samples.best for row in rows]
