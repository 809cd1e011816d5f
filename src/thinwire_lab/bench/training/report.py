"""``LinkTable`` and ``make_page``: how long each way takes to a loss, as a table and as a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from thinwire_lab.bench.links.cases import DDP, NO_DELAY, NONE, delay_seconds_of, rate_of
from thinwire_lab.bench.machine import BUSY
from thinwire_lab.bench.training.result import Point, TrainingResult
from thinwire_lab.bench.training.settings import FREE, HOSTS, Link, TrainingRun, numel_of, task_of
from thinwire_lab.report.page import Block, Chart, Heading, Line, Page, Paragraph, Table

Results = Mapping[TrainingRun, TrainingResult]

NEARLY = 1.01
"""Times the loss of dense training: within it two losses count as equal."""
POWERSGD = "powersgd4"
_DRAWN_TO = 1.5
"""Times the loss of dense training: above it, all lines fall alike."""
_DRAWN = (NONE.name, DDP.name, POWERSGD, "adam", "average-8")
COLUMNS = (
    "way",
    "step ms",
    "final loss",
    "above DDP",
    "minutes to DDP's loss",
    "to 1 % above",
    "times none",
    "faster than PowerSGD",
    "kB out",
    "",
)
LEGEND = (
    "The same for all ways: network, first weights, batches of each host, AdamW, learning rate and "
    "its schedule, and number of steps unless a row says another. Only the exchange differs. "
    "Minutes are those of training; the time to score held-out text is not in them. above DDP: of "
    "the final held-out loss. times none: minutes to 1 % above DDP's loss, over those of DDP if "
    "communication cost nothing. faster than PowerSGD: minutes of PowerSGD over these; > where it "
    "never gets there, with all of its minutes. Ways marked 'steps x curve' were not trained in "
    "full on this link: some of their steps were timed there, and losses by step are those of "
    "another link, which they do not depend on. busy: the share of the machine that other "
    "processes used meanwhile; times of such runs are too long."
)


@dataclass(frozen=True, slots=True)
class Course:
    """A way over a link: held-out losses by time. ``measured`` is false if the times are those of
    some steps, and the losses those of another link."""

    run: TrainingRun
    result: TrainingResult
    points: tuple[Point, ...]
    measured: bool

    def seconds_to(self, loss: float) -> float | None:
        """Between two scores the loss is taken to fall evenly; None if it is never reached."""
        if self.points and self.points[0].loss <= loss:
            return self.points[0].seconds
        for before, after in pairwise(self.points):
            if after.loss <= loss:
                part = (before.loss - loss) / (before.loss - after.loss)
                return before.seconds + part * (after.seconds - before.seconds)
        return None


@dataclass(frozen=True, slots=True)
class LinkTable:
    """What was found for a link, beside dense training without communication."""

    link: Link
    courses: tuple[Course, ...]
    ideal: Course | None
    dense: Point | None
    """The end of dense training."""

    @property
    def title(self) -> str:
        if self.link == FREE:
            return "A link without limits"
        delay = "" if self.link.delay == NO_DELAY else f", {self.link.delay} round trip"
        return f"{self.link.rate}{delay}"

    def cells(self) -> tuple[tuple[str, ...], ...]:
        return tuple(self._row(course) for course in self._with_ideal())

    def _row(self, course: Course) -> tuple[str, ...]:
        result, end = course.result, course.points[-1].loss if course.points else None
        exact, nearly = self._minutes(course, 1.0), self._minutes(course, NEARLY)
        return (
            self._label(course),
            f"{1e3 * result.step_seconds:.0f}",
            "diverged" if result.diverged else "" if end is None else f"{end:.4f}",
            "" if end is None or self.dense is None else f"{end / self.dense.loss - 1:+.1%}",
            self._shown(exact, course),
            self._shown(nearly, course),
            _ratio(nearly, self._minutes(self.ideal, NEARLY)),
            self._against_powersgd(nearly),
            f"{result.sent_nbytes / 1e3:,.1f}",
            _remarks(course),
        )

    def _label(self, course: Course) -> str:
        """With the number of steps, if it is not that of dense training."""
        steps = self.dense.step if self.dense is not None else course.run.steps
        other = course.run.way != NONE and course.run.steps != steps
        return course.run.way.label + (f", {course.run.steps:,} steps" if other else "")

    def _minutes(self, course: Course | None, times: float) -> float | None:
        if course is None or self.dense is None:
            return None
        seconds = course.seconds_to(times * self.dense.loss)
        return None if seconds is None else seconds / 60

    def _shown(self, minutes: float | None, course: Course) -> str:
        if minutes is not None:
            return f"{minutes:.3g}"
        return "not reached" if course.points and self.dense is not None else ""

    def _against_powersgd(self, minutes: float | None) -> str:
        others = [c for c in self.courses if c.run.way.name == POWERSGD and c.points]
        if minutes is None or not others:
            return ""
        reached = [m for c in others if (m := self._minutes(c, NEARLY)) is not None]
        if reached:
            return _ratio(min(reached), minutes)
        return f"> {max(c.points[-1].seconds for c in others) / 60 / minutes:.2f}"

    def chart(self) -> Chart:
        """One line for each of some ways: the run that is soonest at DDP's loss, or the lowest."""
        drawn = (
            min(runs, key=self._order)
            for name in _DRAWN
            if (runs := [c for c in self._with_ideal() if c.run.way.name == name and c.points])
        )
        lines = (
            Line(
                self._label(course) + ("" if course.measured else " (steps x curve)"),
                tuple((p.seconds / 60, p.loss) for p in course.points if self._is_late(p)),
            )
            for course in drawn
        )
        title = f"Held-out loss by time: {self.title}"
        return Chart(title, "minutes", "loss", tuple(lines), log_x=True)

    def _is_late(self, point: Point) -> bool:
        """Whether it is in the part of training where ways differ."""
        return self.dense is None or point.loss <= _DRAWN_TO * self.dense.loss

    def _order(self, course: Course) -> tuple[float, float]:
        minutes = self._minutes(course, NEARLY)
        return math.inf if minutes is None else minutes, course.points[-1].loss

    def _with_ideal(self) -> Iterable[Course]:
        if self.ideal is not None and self.ideal not in self.courses:
            yield self.ideal
        yield from self.courses


def _remarks(course: Course) -> str:
    others = course.result.others
    remarks = ["" if course.measured else "steps x curve", f"busy {others:.0%}" * (others > BUSY)]
    return ", ".join(remark for remark in remarks if remark)


def _ratio(above: float | None, below: float | None) -> str:
    return "" if above is None or below is None else f"{above / below:.2f}"


def make_tables(results: Results) -> list[LinkTable]:
    """One for each link, fast ones first. The shortest run of DDP is what others are compared
    with."""
    curves = {(run.way, run.steps): r.points for run, r in results.items() if r.points}
    shortest = min((steps for way, steps in curves if way == DDP), default=0)
    dense = curves.get((DDP, shortest), ())
    courses = [
        _course(run, result, dense if run.way == NONE else curves.get((run.way, run.steps), ()))
        for run, result in results.items()
    ]
    ideal = next((course for course in courses if course.run.way == NONE), None)
    return [
        LinkTable(
            link,
            tuple(course for course in courses if course.run.link == link),
            ideal,
            dense[-1] if dense else None,
        )
        for link in sorted({run.link for run in results}, key=_slowness)
    ]


def _slowness(link: Link) -> tuple[float, float]:
    bits = rate_of(link.rate)
    return 0.0 if bits is None else 1 / bits, delay_seconds_of(link.delay)


def _course(run: TrainingRun, result: TrainingResult, curve: Sequence[Point]) -> Course:
    if result.points:
        return Course(run, result, result.points, measured=True)
    points = (Point(p.step, p.step * result.step_seconds, p.loss) for p in curve)
    return Course(run, result, tuple(points), measured=False)


def make_page(results: Results, *, command: str) -> Page:
    """Tables and charts of all links that have results, of which there must be some."""
    run, result = next(iter(results.items()))
    task = task_of(run.scale, run.steps)
    blocks: list[Block] = [
        Paragraph(f"{len(results)} runs: {command}"),
        Paragraph(
            f"A GPT of {numel_of(run.scale):,} parameters ({task.about}) on {HOSTS} hosts with a "
            f"core each, {run.steps:,} steps unless a row has another number, AdamW with a rate "
            f"that rises to {task.training.learning_rate:g} and falls along a cosine."
        ),
        Paragraph(result.machine, note=True),
    ]
    for table in make_tables(results):
        blocks += [Heading(table.title), Table(COLUMNS, table.cells()), table.chart()]
    blocks += [Heading("Notes"), Paragraph(LEGEND)]
    return Page("Time to a loss", tuple(blocks))
