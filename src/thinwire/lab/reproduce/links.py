"""Step times on shaped links, from what ``thinwire bench links --json`` wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import ThinwireError
from thinwire.lab.report.chart import Chart, Line
from thinwire.lab.report.page import Block, Heading, Paragraph, Table


@dataclass(frozen=True, slots=True)
class Links:
    """``times`` are the best ones, in milliseconds, by case and rate."""

    model: str
    hosts: int
    machine: str
    rates: tuple[str, ...]
    times: dict[str, dict[str, float]]

    def blocks(self) -> tuple[Block, ...]:
        lines = tuple(
            Line(case, tuple((self.rates.index(rate), ms) for rate, ms in found.items()))
            for case, found in self.times.items()
        )
        rows = tuple(
            (case, *(f"{found[rate]:,.1f}" if rate in found else "" for rate in self.rates))
            for case, found in self.times.items()
        )
        return (
            Heading("Time per iteration against bandwidth"),
            Paragraph(
                f"Measured on shaped links, not calculated: {self.model}, {self.hosts} hosts, best "
                f"step in ms. {self.machine}"
            ),
            Table(("", *self.rates), rows),
            Chart("Best step", "link of each host", "ms", lines, log_y=True, x_names=self.rates),
        )


def read_links(path: Path) -> Links:
    try:
        values = json.loads(path.read_text())
        rows = values["rows"]
        times: dict[str, dict[str, float]] = {}
        for row in rows:
            times.setdefault(row["label"], {})[row["rate"]] = float(row["best_ms"])
        machine = values["machine"]
        return Links(
            model=f"{values['model']['name']}, {values['numel']:,} parameters",
            hosts=values["hosts"],
            machine=f"{machine['cpu']}, {machine['date']}",
            rates=tuple(dict.fromkeys(row["rate"] for row in rows)),
            times=times,
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ThinwireError(
            f"{path} is not what thinwire bench links --json writes: {error}"
        ) from error
