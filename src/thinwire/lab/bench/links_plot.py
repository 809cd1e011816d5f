"""A picture of a report: step times by rate, one line for each case. Needs matplotlib."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.lab.bench.links_report import LinkRow, LinksReport


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
    axes.set_title(f"{report.model.name}, {report.model.numel:,} parameters, {report.hosts} hosts")
    axes.grid(visible=True, which="both", alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(file, dpi=150)


def _line(rates: Sequence[str], rows: Sequence[LinkRow]) -> tuple[list[int], list[float]]:
    return [rates.index(row.rate) for row in rows], [1e3 * row.samples.best for row in rows]
