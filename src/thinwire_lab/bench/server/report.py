"""``ServerReport``: ratios from the times of cells. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from thinwire_lab.bench.machine import Machine
from thinwire_lab.bench.report import Json, Ratio
from thinwire_lab.bench.rounds import Samples
from thinwire_lab.bench.server.cells import ALLREDUCE, Cell
from thinwire_lab.bench.server.synthetic import SyntheticModel


@dataclass(frozen=True, slots=True)
class Block:
    """Some steps of a cell, per step. Seconds are those of the slowest worker.

    Bytes and processor time are of one worker on average; ``server_cpu_seconds`` of all servers.
    """

    seconds: float
    sent_nbytes: float
    received_nbytes: float
    worker_cpu_seconds: float
    server_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A cell beside the allreduce of as many workers, and beside itself without a log."""

    cell: Cell
    samples: Samples
    sent_nbytes: float
    received_nbytes: float
    worker_cpu: Samples
    server_cpu: Samples
    allreduce: Ratio | None
    log_off: Ratio | None

    @property
    def steps_per_second(self) -> float:
        return 1 / self.samples.median

    @property
    def mean(self) -> float:
        """Seconds of a step, including rare long ones, which the median ignores."""
        return sum(self.samples.seconds) / len(self.samples.seconds)

    def as_json(self) -> Json:
        return {
            "workers": self.cell.workers,
            "way": self.cell.way,
            "log": self.cell.log,
            "best_ms": 1e3 * self.samples.best,
            "median_ms": 1e3 * self.samples.median,
            "mean_ms": 1e3 * self.mean,
            "steps_per_second": self.steps_per_second,
            "sent_nbytes": self.sent_nbytes,
            "received_nbytes": self.received_nbytes,
            "worker_cpu_ms": 1e3 * self.worker_cpu.median,
            "server_cpu_ms": 1e3 * self.server_cpu.median,
            "ratios": {
                "allreduce": self.allreduce and asdict(self.allreduce),
                "log_off": self.log_off and asdict(self.log_off),
            },
            "seconds": list(self.samples.seconds),
        }


@dataclass(frozen=True, slots=True)
class ServerReport:
    """All rows. ``others`` is the share of the machine that other processes used, 0 to 1;
    ``interrupted`` means that rounds are missing.
    """

    machine: Machine
    link: str
    model: SyntheticModel
    servers: int
    steps: int
    optimizer: bool
    keys: bool
    others: float
    interrupted: bool
    rows: tuple[ServerRow, ...]

    def as_json(self) -> Json:
        return {
            "machine": asdict(self.machine),
            "link": self.link,
            "given": asdict(self.model),
            "dense_nbytes": self.model.nbytes,
            "servers": self.servers,
            "steps": self.steps,
            "optimizer": self.optimizer,
            "keys": self.keys,
            "others": self.others,
            "interrupted": self.interrupted,
            "rows": [row.as_json() for row in self.rows],
        }


def make_server_rows(blocks: Mapping[Cell, Sequence[Block]]) -> tuple[ServerRow, ...]:
    """One row for each cell that was measured at least once."""
    samples = {cell: _samples(some, "seconds") for cell, some in blocks.items() if some}
    return tuple(_make_row(cell, blocks[cell], samples) for cell in samples)


def _make_row(cell: Cell, blocks: Sequence[Block], samples: Mapping[Cell, Samples]) -> ServerRow:
    seconds = samples[cell]
    return ServerRow(
        cell=cell,
        samples=seconds,
        sent_nbytes=sum(b.sent_nbytes for b in blocks) / len(blocks),
        received_nbytes=sum(b.received_nbytes for b in blocks) / len(blocks),
        worker_cpu=_samples(blocks, "worker_cpu_seconds"),
        server_cpu=_samples(blocks, "server_cpu_seconds"),
        allreduce=_beside(seconds, samples.get(Cell(cell.workers, ALLREDUCE))),
        log_off=_beside(seconds, samples.get(Cell(cell.workers, cell.way, "off"))),
    )


def _beside(seconds: Samples, other: Samples | None) -> Ratio | None:
    return None if other is None else Ratio.of(seconds, other)


def _samples(blocks: Sequence[Block], field: str) -> Samples:
    return Samples(tuple(getattr(block, field) for block in blocks))
