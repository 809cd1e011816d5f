"""``make_page``: the report of a reproduction, its tables beside the paper's figures. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from thinwire.errors import ThinwireError
from thinwire_lab.report.page import Block, Chart, Heading, Line, Page, Paragraph, Table
from thinwire_lab.reproduce.plan import Experiment, Reproduction, Trial
from thinwire_lab.reproduce.result import Curve, TrialResult
from thinwire_lab.reproduce.sizes import Measured, size_blocks
from thinwire_lab.reproduce.table import (
    Row,
    cells,
    header,
    judge,
    make_rows,
    mean_curve,
    results_of,
)


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
            Line(case, tuple((self.rates.index(rate), ms) for rate, ms in by_rate.items()))
            for case, by_rate in self.times.items()
        )
        rows = tuple(
            (case, *(f"{by_rate[rate]:,.1f}" if rate in by_rate else "" for rate in self.rates))
            for case, by_rate in self.times.items()
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
            f"{path} is not a file of thinwire bench links --json: {error}"
        ) from error


_LEGEND = (
    "± is the standard deviation over seeds. above dense: of the perplexity or loss to its left; "
    "lower is better. push: bytes that one worker sends in a step after warm-up, frames and all; "
    "both ways: with what comes back; whole run: the same in all steps, those of warm-up included."
)


def make_page(
    reproduction: Reproduction,
    results: Mapping[Trial, TrialResult],
    *,
    planned: int,
    command: str,
    sizes: tuple[Measured, ...] = (),
    links: Links | None = None,
) -> Page:
    done = f"{len(results)} of {planned} runs" if len(results) < planned else f"{planned} runs"
    machines = dict.fromkeys(result.machine for result in results.values())
    blocks: list[Block] = [
        Paragraph(f"{done}, thinwire {version('thinwire')}: {command}"),
        Paragraph(next(iter(machines), ""), note=True),
    ]
    for experiment in reproduction.experiments:
        blocks.extend(_experiment(experiment, results))
    if sizes:
        blocks.extend(size_blocks(sizes))
    if links is not None:
        blocks.extend(links.blocks())
    blocks.append(Heading("Notes"))
    blocks.extend(Paragraph(text) for text in (_LEGEND, *reproduction.notes))
    return Page(reproduction.title, tuple(blocks))


def _experiment(experiment: Experiment, results: Mapping[Trial, TrialResult]) -> list[Block]:
    rows = make_rows(experiment, results)
    if not rows:
        return []
    source = f"Paper: {experiment.source}. " if experiment.source else ""
    here = f"{source}Here: {experiment.about}" if source else experiment.about
    return [
        Heading(experiment.title),
        Paragraph(here),
        Paragraph(_settings(experiment, results), note=True),
        Table(header(experiment, rows), cells(experiment, rows)),
        *(Paragraph(sentence) for sentence in judge(rows)),
        *_charts(experiment, rows, results),
    ]


def _charts(
    experiment: Experiment, rows: Sequence[Row], results: Mapping[Trial, TrialResult]
) -> Iterator[Chart]:
    by_label = {row.variant.label: results_of(experiment, row.variant, results) for row in rows}
    held_out = {name: [run.held_out_curve() for run in runs] for name, runs in by_label.items()}
    training = {name: [run.training_curve() for run in runs] for name, runs in by_label.items()}
    yield _chart("Held-out", held_out)
    # Two epochs would be a straight line.
    if max(len(curve) for curves in training.values() for curve in curves) > 2:
        yield _chart("Training", training)


def _chart(what: str, curves: Mapping[str, Sequence[Curve]]) -> Chart:
    lines = tuple(Line(label, mean_curve(seeds)) for label, seeds in curves.items())
    return Chart(f"{what} loss by epoch, mean over seeds", "epoch", "loss", lines)


def _settings(experiment: Experiment, results: Mapping[Trial, TrialResult]) -> str:
    """Of what was run, which may differ from what is planned."""
    settings = next(r.settings for t, r in results.items() if t.experiment == experiment)
    return f"{settings['steps']:,} steps, {experiment.workers} workers. {settings['training']}"
