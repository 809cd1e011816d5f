"""``train``: the demo's small GPT, trained dense and compressed by real processes.

Each recipe in turn has a server and two workers, and the same batches. Dense gradients go through
the same server and frames, so that the comparison is fair. Prints nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from thinwire.errors import WorkerLost
from thinwire_lab.report.page import Chart, Heading, Line, Page, Paragraph, Table
from thinwire_lab.train.events import Event, Outcome, Progress, last
from thinwire_lab.train.interrupts import Interrupts
from thinwire_lab.train.plan import Plan, prepare
from thinwire_lab.train.run import Run
from thinwire_lab.train.settings import RunSettings
from thinwire_lab.train.supervisor import SAVED

TASK, WORKERS = "demo", 2

LAST = 20
"""The final training loss is the mean of this many last steps."""

LINKS = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "10 Gbit/s": 1e10}
"""Links for which step times are calculated, in bits per second."""


@dataclass(frozen=True, slots=True)
class Way:
    """A recipe, by a name that fits a table."""

    name: str
    recipe: str


def ways() -> tuple[Way, ...]:
    """The recipes to compare, all with the same AdamW at the same rate; dense comes first.

    The second is what ``tw.recipe_for`` chooses. The last sends the gradient in one bit instead of
    the momentum, and shows what that costs.
    """
    return (
        Way("dense", "dense"),
        Way("adam", "adam()"),
        Way("gradient in 1 bit", "doublesqueeze(OneBit())"),
    )


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one recipe. Bytes are those of one worker and step, as whole frames, on average
    over the run; seconds are those of a step over loopback, where bytes cost next to nothing."""

    name: str
    steps: int
    final_loss: float
    held_out_loss: float
    pushed_nbytes: float
    pulled_nbytes: float
    step_seconds: float
    losses: tuple[float, ...]

    @property
    def nbytes(self) -> float:
        return self.pushed_nbytes + self.pulled_nbytes

    def seconds_on(self, bits_per_second: float) -> float:
        """Calculated: a step as measured, and then the bytes of all workers over the link of the
        one server, first pushes and then pulls."""
        return self.step_seconds + 8 * WORKERS * self.nbytes / bits_per_second


def plan_of(way: Way, out: Path, *, steps: int, seed: int) -> Plan:
    return prepare(
        RunSettings(
            TASK,
            str(out),
            recipe=way.recipe,
            workers=WORKERS,
            backend="server",
            seed=seed,
            steps=steps,
        )
    )


def train(
    way: Way, plan: Plan, show: Callable[[Event], None], interrupts: Interrupts
) -> Result | None:
    """Train to the end; None if the user stopped it. All processes have ended when it returns."""
    steps: list[Progress] = []

    def collect(event: Event) -> None:
        if isinstance(event, Progress):
            steps.append(event)
        show(event)

    try:
        with Run(plan) as run:
            outcome = last(run.train(collect, interrupts).events, Outcome)
    except WorkerLost as error:  # without its advice, which is for runs that are kept
        raise WorkerLost(f"{way.name}: {str(error).partition(SAVED)[0].strip()}") from error
    return None if outcome is None else make_result(way, steps, outcome)


def make_result(way: Way, steps: Sequence[Progress], outcome: Outcome) -> Result:
    """``steps`` are all those of worker 0."""
    times = [0.0, *(step.seconds for step in steps)]
    return Result(
        name=way.name,
        steps=len(steps),
        final_loss=statistics.fmean(step.loss for step in steps[-LAST:]),
        held_out_loss=outcome.loss,
        pushed_nbytes=statistics.fmean(step.pushed_nbytes for step in steps),
        pulled_nbytes=statistics.fmean(step.pulled_nbytes for step in steps),
        # The median, because other programs on this machine disturb some steps.
        step_seconds=statistics.median(b - a for a, b in pairwise(times)),
        losses=tuple(step.loss for step in steps),
    )


EQUAL_PERCENT = 1.0
"""Held-out losses that differ from dense by no more than this are called equal."""

MEASURED = ("", "loss", "held-out", "pushed", "pulled", "bytes", "step")
CALCULATED = ("step, if the link had", *LINKS)

LEGEND = (
    f"loss: of worker 0, mean of the last {LAST} steps, in nats per character. held-out: on text "
    "that was not trained on; this loss, not its perplexity, decides which is better. pushed, "
    "pulled: bytes of one worker in a step, as whole frames, on average: adam sends its first 96 "
    "steps in 16 bits, so longer runs send fewer. step: over loopback, median."
)
ASSUMED = (
    "Calculated, not measured: the step above, and then the bytes of "
    f"{WORKERS} workers over the link of one server, without overlap. thinwire bench links "
    "measures it."
)

_SMOOTHED = 10


def measured(result: Result, dense: Result) -> tuple[str, ...]:
    return (
        result.name,
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
    loss, of_dense = result.held_out_loss, dense.held_out_loss
    return (
        f"{result.name}: {fewer:.0f} times fewer bytes, held-out loss {compared(loss, of_dense)} "
        f"after {result.steps} steps ({loss:.3f} against {of_dense:.3f} nats per character)."
    )


def compared(loss: float, dense: float) -> str:
    """How a positive loss compares with that of dense, in per cent."""
    # Rounded first, so that the number shown is the one that decides.
    percent = round(100 * (loss / dense - 1), 1)
    if abs(percent) <= EQUAL_PERCENT:
        return f"equal to dense within {EQUAL_PERCENT:g} %"
    return f"{abs(percent):.1f} % {'worse' if percent > 0 else 'better'} than dense"


def make_page(results: Sequence[Result], introduction: str, machine: str) -> Page:
    """The report, of at least one result."""
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
    """Means of a few steps each: single losses are noisy."""
    starts = range(0, len(losses), _SMOOTHED)
    parts = ((start, losses[start : start + _SMOOTHED]) for start in starts)
    return tuple((start + len(part), statistics.fmean(part)) for start, part in parts)
