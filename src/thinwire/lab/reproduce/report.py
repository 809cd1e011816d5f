"""The report of a reproduction: tables beside the paper's figures, and curves. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version

from thinwire.lab.report.chart import Chart, Line
from thinwire.lab.report.page import Block, Heading, Page, Paragraph, Table
from thinwire.lab.reproduce.links import Links
from thinwire.lab.reproduce.plan import Experiment, Reproduction, Trial
from thinwire.lab.reproduce.result import Curve, TrialResult
from thinwire.lab.reproduce.sizes import Measured, size_blocks
from thinwire.lab.reproduce.table import Row, make_rows, mean_curve, results_of
from thinwire.lab.reproduce.words import cells, header, judge

_LEGEND = (
    "± is the standard deviation over seeds. above dense: of the perplexity or loss to its left; "
    "lower is better. push: bytes that one worker sends in a step after warm-up, frames and all; "
    "both ways: with what comes back."
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
    return Page(f"{reproduction.title}, run again", tuple(blocks))


def _experiment(experiment: Experiment, results: Mapping[Trial, TrialResult]) -> list[Block]:
    rows = make_rows(experiment, results)
    if not rows:
        return []
    source = f"Paper: {experiment.source}. " if experiment.source else ""
    return [
        Heading(experiment.title),
        Paragraph(f"{source}Here: {experiment.about}"),
        Paragraph(_settings(experiment, results), note=True),
        Table(header(experiment, rows), cells(experiment, rows)),
        *(Paragraph(sentence) for sentence in judge(rows)),
        *_charts(experiment, rows, results),
    ]


def _charts(
    experiment: Experiment, rows: Sequence[Row], results: Mapping[Trial, TrialResult]
) -> Iterator[Chart]:
    found = {row.variant.label: results_of(experiment, row.variant, results) for row in rows}
    held_out = {name: [one.held_out_curve() for one in some] for name, some in found.items()}
    training = {name: [one.training_curve() for one in some] for name, some in found.items()}
    yield _chart("Held-out", held_out)
    # Two epochs are a straight line, which says nothing.
    if max(len(curve) for curves in training.values() for curve in curves) > 2:
        yield _chart("Training", training)


def _chart(what: str, curves: Mapping[str, Sequence[Curve]]) -> Chart:
    lines = tuple(Line(label, mean_curve(some)) for label, some in curves.items())
    return Chart(f"{what} loss by epoch, mean over seeds", "epoch", "loss", lines)


def _settings(experiment: Experiment, results: Mapping[Trial, TrialResult]) -> str:
    """From what was really run, not from what was planned."""
    settings = next(r.settings for t, r in results.items() if t.experiment == experiment)
    return f"{settings['steps']:,} steps, {experiment.workers} workers. {settings['training']}"
