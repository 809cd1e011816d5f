"""What ``thinwire reproduce`` shows: the run that is under way, then tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import rich.box
from rich.table import Table

from thinwire.cli.train_view import TrainProgress, score, wrapped_console
from thinwire.lab.reproduce.plan import Experiment, Reproduction, Trial
from thinwire.lab.reproduce.result import TrialResult
from thinwire.lab.reproduce.table import make_rows
from thinwire.lab.reproduce.words import cells, header, judge
from thinwire.lab.train.events import Event
from thinwire.lab.train.plan import Plan

_Results = Mapping[Trial, TrialResult]

_SHOWN = (0, 2, 4, 6, 7, 8)
"""These columns fit on 80 characters. The report has all of them."""


class ReproduceProgress:
    """See ``Watcher``: the bar of each run in its turn."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._console = wrapped_console()
        self._run: TrainProgress | None = None

    def __enter__(self) -> ReproduceProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def begin(self, trial: Trial, plan: Plan, *, number: int, start: int) -> None:
        again = f", goes on after step {start}" if start else ""
        self._console.print(
            f"[bold]run {number} of {self._count}[/]: {trial.name}, seed {trial.seed}, "
            f"{plan.steps:,} steps{again}"
        )
        self._run = TrainProgress(plan, start=start)
        self._run.__enter__()

    def show(self, event: Event) -> None:
        if self._run is not None:
            self._run.show(event)

    def end(self, trial: Trial, result: TrialResult) -> None:
        self._stop()
        outcome = result.outcome
        self._console.print(f"  {result.diverged if outcome is None else score(outcome)}")

    def _stop(self) -> None:
        if self._run is not None:
            self._run.__exit__(None, None, None)
            self._run = None


def print_list(trials: Sequence[Trial], finished: _Results) -> None:
    for trial in trials:
        state = "finished" if trial in finished else "to do"
        print(f"{trial.name}  seed {trial.seed}  {state}  {trial.variant.recipe}")


def print_tables(reproduction: Reproduction, results: _Results) -> None:
    console = wrapped_console()
    for experiment in reproduction.experiments:
        rows = make_rows(experiment, results)
        if rows:
            console.print(f"\n[bold]{experiment.title}[/] ({experiment.about})")
            console.print(_table(experiment, results))
            for sentence in judge(rows):
                console.print(sentence)


def print_end(out: Path, *, finished: int, planned: int, reported: bool) -> None:
    """Where everything is, and how to go on if it was stopped."""
    console = wrapped_console()
    if reported:
        console.print(f"Report: {out / 'report.html'}")
    if finished < planned:
        console.print(
            f"Stopped: {finished} of {planned} runs are finished. Everything is kept in {out}: the "
            "same command goes on."
        )


def _table(experiment: Experiment, results: _Results) -> Table:
    rows = make_rows(experiment, results)
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    names = header(experiment, rows)
    for name in _SHOWN:
        table.add_column(names[name], justify="right" if name else "left", no_wrap=not name)
    for row in rows:
        row_cells = cells(row, rows[0])
        table.add_row(*(row_cells[name] for name in _SHOWN))
    return table
