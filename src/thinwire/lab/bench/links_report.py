"""Ratios from what cases took on links. Pure: no clock, no printing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from thinwire.lab.bench.hosts import burst_nbytes
from thinwire.lab.bench.links_cases import DDP, NONE, LinkCase, LinkModel, rate_of
from thinwire.lab.bench.machine import Machine
from thinwire.lab.bench.report import Json, Ratio
from thinwire.lab.bench.rounds import Samples

Blocks = Mapping[tuple[str, LinkCase], Sequence["Block"]]
"""By rate and case."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some steps of a case. Seconds are those of the slowest host, one for each step.

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
    over that without communication. ``link`` is the part of the link that its best step uses, in
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
            "best_ms": 1e3 * self.samples.best,
            "median_ms": 1e3 * self.samples.median,
            "times_faster_than_ddp": self.ddp and asdict(self.ddp),
            "times_of_no_communication": self.none and asdict(self.none),
            "sent_nbytes": self.sent_nbytes,
            "received_nbytes": self.received_nbytes,
            "link_used": self.link,
            "cpu_ms": 1e3 * self.cpu.median,
            "server_cpu_ms": 1e3 * self.server_cpu.median,
            "seconds": list(self.samples.seconds),
        }


@dataclass(frozen=True, slots=True)
class LinksReport:
    """All rows, and the share of the machine that other processes had meanwhile, 0 to 1.

    ``interrupted`` says that rounds are missing that were asked for.
    """

    machine: Machine
    model: LinkModel
    hosts: int
    steps: int
    others: float
    interrupted: bool
    rows: tuple[LinkRow, ...]

    def rates(self) -> list[str]:
        return list(dict.fromkeys(row.rate for row in self.rows))

    def as_json(self) -> Json:
        return {
            "machine": asdict(self.machine),
            "model": {**asdict(self.model), "backward_ms": self.model.given_ms},
            "numel": self.model.numel,
            "dense_nbytes": self.model.nbytes,
            "hosts": self.hosts,
            "steps": self.steps,
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
        key: Samples(tuple(s for block in found for s in block.seconds))
        for key, found in blocks.items()
        if found
    }
    return tuple(_make_row(key, blocks[key], samples) for key in samples)


def _make_row(
    key: tuple[str, LinkCase],
    blocks: Sequence[Block],
    samples: Mapping[tuple[str, LinkCase], Samples],
) -> LinkRow:
    rate, case = key
    own, ddp, none = samples[key], samples.get((rate, DDP)), samples.get((rate, NONE))
    return LinkRow(
        rate=rate,
        case=case,
        samples=own,
        sent_nbytes=sum(block.sent_nbytes for block in blocks) / len(blocks),
        received_nbytes=sum(block.received_nbytes for block in blocks) / len(blocks),
        cpu=Samples(tuple(block.cpu_seconds for block in blocks)),
        server_cpu=Samples(tuple(block.server_cpu_seconds for block in blocks)),
        ddp=None if ddp is None else Ratio.of(ddp, own),
        none=None if none is None else Ratio.of(own, none),
    )
