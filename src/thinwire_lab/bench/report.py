"""``Report`` of the kernel benchmark: ratios and verdicts from samples. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from thinwire_lab.bench.kernels.cases import MEMCPY
from thinwire_lab.bench.kernels.targets import Kind, Target, Verdict, targets_for
from thinwire_lab.bench.machine import Machine
from thinwire_lab.bench.rounds import Measured, Samples

Json = dict[str, object]
Ratios = dict[Kind, "Ratio | None"]

_SPARSE_HEADER = 8
"""Bytes before the values of a sparse payload; its first four are the number of entries."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of the best times, and of the medians."""

    best: float
    median: float

    @classmethod
    def of(cls, above: Samples, below: Samples) -> Ratio:
        return cls(above.best / below.best, above.median / below.median)


@dataclass(frozen=True, slots=True)
class Outcome:
    target: Target
    ratio: Ratio
    verdict: Verdict

    def as_json(self) -> Json:
        return {
            "bar": self.target.kind.value,
            "limit": self.target.limit,
            "found": asdict(self.ratio),
            "verdict": self.verdict.value,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """A case beside memcpy, torch and its targets.

    ``memcpy`` is our time over memcpy's; ``plain``, ``tuned`` and ``one_thread`` are the times of
    those over ours. ``bits`` are those of the payload for every element of the tensor,
    ``index_bits`` those of every index that a sparse payload holds.
    """

    name: str
    threads: int
    numel: int
    samples: dict[str, Samples]
    memcpy: Ratio
    plain: Ratio | None
    tuned: Ratio | None
    one_thread: Ratio | None
    bits: float | None
    index_bits: float | None
    outcomes: tuple[Outcome, ...]

    @property
    def gigabytes_per_second(self) -> float:
        """Bytes of the float32 tensor that are dealt with in a second, at best."""
        return 4e-9 * self.numel / self.samples["ours"].best

    def as_json(self) -> Json:
        ratios = ("memcpy", "plain", "tuned", "one_thread")
        by_name = {name: getattr(self, name) for name in ratios}
        return {
            "case": self.name,
            "numel": self.numel,
            "threads": self.threads,
            "best_ms": 1e3 * self.samples["ours"].best,
            "median_ms": 1e3 * self.samples["ours"].median,
            "gigabytes_per_second": self.gigabytes_per_second,
            "ratios": {name: ratio and asdict(ratio) for name, ratio in by_name.items()},
            "bits_per_element": self.bits,
            "bits_per_index": self.index_bits,
            "bars": [outcome.as_json() for outcome in self.outcomes],
            "seconds": {name: list(s.seconds) for name, s in self.samples.items()},
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, and ``others``: the share of the machine that other processes used, 0 to 1."""

    machine: Machine
    others: float
    rows: tuple[Row, ...]

    def with_verdict(self, verdict: Verdict) -> list[tuple[Row, Outcome]]:
        return [(r, o) for r in self.rows for o in r.outcomes if o.verdict is verdict]

    def as_json(self) -> Json:
        return {
            "machine": asdict(self.machine),
            "others": self.others,
            "rows": [row.as_json() for row in self.rows],
        }


def make_rows(numel: int, measured: Sequence[Measured]) -> list[Row]:
    """One row for each case of a size, of which one is memcpy."""
    ours = {m.case.name: m.samples["ours"] for m in measured}
    return [_make_row(numel, m, ours) for m in measured]


def _make_row(numel: int, measured: Measured, ours: dict[str, Samples]) -> Row:
    case, samples, payload = measured.case, measured.samples, measured.payload
    time = samples["ours"]
    ratios: Ratios = {
        Kind.MEMCPY: Ratio.of(time, ours[MEMCPY]),
        Kind.TORCH: Ratio.of(samples["plain"], time) if case.plain else None,
        Kind.TUNED: Ratio.of(samples["tuned"], time) if case.tuned else None,
        Kind.STEP: Ratio.of(time, ours[case.beside]) if case.beside else None,
        Kind.THREADS: Ratio.of(ours[case.one_thread], time) if case.one_thread else None,
        Kind.INDEX_BITS: _index_bits(payload, case.value_nbytes),
    }
    return Row(
        name=case.name,
        threads=case.threads,
        numel=numel,
        samples=samples,
        memcpy=Ratio.of(time, ours[MEMCPY]),
        plain=ratios[Kind.TORCH],
        tuned=ratios[Kind.TUNED],
        one_thread=ratios[Kind.THREADS],
        bits=8 * len(payload) / numel if payload else None,
        index_bits=_best(ratios[Kind.INDEX_BITS]),
        outcomes=_judge(targets_for(case.name, numel), ratios),
    )


def _index_bits(payload: bytes | None, value_nbytes: int | None) -> Ratio | None:
    if payload is None or value_nbytes is None:
        return None
    entries = int.from_bytes(payload[:4], "little")
    bits = 8 * (len(payload) - _SPARSE_HEADER - value_nbytes * entries) / entries
    return Ratio(bits, bits)


def _best(ratio: Ratio | None) -> float | None:
    return None if ratio is None else ratio.best


def _judge(targets: Sequence[Target], ratios: Ratios) -> tuple[Outcome, ...]:
    pairs = ((target, ratios[target.kind]) for target in targets)
    return tuple(
        Outcome(target, ratio, target.judge(ratio.best, ratio.median))
        for target, ratio in pairs
        if ratio
    )
