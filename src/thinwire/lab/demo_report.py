"""The demo's table and sentences, for the terminal and for the report. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from thinwire.lab.demo import LAST, LINKS, WORKERS, Result
from thinwire.lab.report.chart import Chart, Line
from thinwire.lab.report.page import Heading, Page, Paragraph, Table

CLOSE = 0.1
"""Held-out losses this near to dense, in nats, are called close."""

MEASURED = ("", "rate", "loss", "held-out", "pushed", "pulled", "bytes", "step")
CALCULATED = ("step, if the link had", *LINKS)

LEGEND = (
    "rate: the best of three learning rates, for each recipe on its own. loss: of worker 0, mean "
    f"of the last {LAST} steps, in nats per character. held-out: on text that was not trained on. "
    "pushed, pulled: bytes of one worker in a step, frames and all. step: over loopback, median."
)
ASSUMED = (
    "Calculated, not measured: the step above, and then the bytes of "
    f"{WORKERS} workers through the link of one server. Nothing overlaps. thinwire bench links "
    "measures it."
)

_SMOOTHED = 10


def measured(result: Result, dense: Result) -> tuple[str, ...]:
    return (
        result.name,
        f"{result.learning_rate:g}",
        f"{result.final_loss:.3f}",
        f"{result.held_out_loss:.3f}",
        f"{result.pushed_nbytes / 1e3:,.0f} kB",
        f"{result.pulled_nbytes / 1e3:,.0f} kB",
        "1" if result is dense else f"1/{dense.nbytes / result.nbytes:.0f}",
        _milliseconds(result.step_seconds),
    )


def calculated(result: Result) -> tuple[str, ...]:
    times = (result.seconds_on(bits) for bits in LINKS.values())
    return (result.name, *map(_milliseconds, times))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"


def verdicts(results: Sequence[Result]) -> tuple[str, ...]:
    dense, *others = results
    return tuple(_verdict(result, dense) for result in others)


def _verdict(result: Result, dense: Result) -> str:
    fewer = dense.nbytes / result.nbytes
    gap = result.held_out_loss - dense.held_out_loss
    if abs(gap) <= CLOSE:
        place = "close to dense"
    else:
        place = f"{'behind' if gap > 0 else 'ahead of'} dense after {result.steps} steps"
    return f"{result.name}: {fewer:.0f} times fewer bytes, {place} (held-out loss {gap:+.3f})."


def make_page(results: Sequence[Result], introduction: str, machine: str) -> Page:
    """The report; needs at least one result."""
    lines = tuple(Line(result.name, _smoothed(result.losses)) for result in results)
    return Page(
        "Thinwire: dense beside compressed",
        (
            Paragraph(introduction),
            Paragraph(machine, note=True),
            *map(Paragraph, verdicts(results)),
            Heading("Measured"),
            Table(MEASURED, tuple(measured(result, results[0]) for result in results)),
            Paragraph(LEGEND, note=True),
            Chart("Training loss by step", "step", "nats per character", lines),
            Heading("What a step would take"),
            Table(CALCULATED, tuple(map(calculated, results))),
            Paragraph(ASSUMED, note=True),
            _links(results),
        ),
    )


def _links(results: Sequence[Result]) -> Chart:
    lines = tuple(
        Line(
            result.name,
            tuple((n, 1e3 * result.seconds_on(bits)) for n, bits in enumerate(LINKS.values())),
        )
        for result in results
    )
    names = tuple(LINKS)
    return Chart("A step by link, calculated", "link", "ms", lines, log_y=True, x_names=names)


def _smoothed(losses: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Means of a few steps each: single ones jump about."""
    starts = range(0, len(losses), _SMOOTHED)
    parts = ((start, losses[start : start + _SMOOTHED]) for start in starts)
    return tuple((start + len(part), statistics.fmean(part)) for start, part in parts)
