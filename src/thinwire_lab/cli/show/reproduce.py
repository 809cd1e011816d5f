"""What ``thinwire reproduce`` prints: progress of each run, then tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import rich.box
from rich.console import JustifyMethod
from rich.table import Table

from thinwire_lab.cli.show.train import TrainProgress, score, wrapped_console
from thinwire_lab.reproduce.plan import Reproduction, Trial
from thinwire_lab.reproduce.result import TrialResult
from thinwire_lab.reproduce.table import PUSH_KB, RUN_MB, SEEDS, cells, header, judge, make_rows
from thinwire_lab.train.events import Event
from thinwire_lab.train.plan import Plan

_Results = Mapping[Trial, TrialResult]

_LEFT_OUT = (SEEDS, PUSH_KB, RUN_MB)
"""Columns of the report that do not fit into 80 characters."""


class ReproduceProgress:
    """See ``Watcher``. Shows a bar for the current run."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._console = wrapped_console()
        self._run: TrainProgress | None = None

    def __enter__(self) -> ReproduceProgress:
        return self

    def __exit__(self, *exception: object) -> None:
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
    """Print what each experiment trains, then a line for every run, which programs may read."""
    for experiment in dict.fromkeys(trial.experiment for trial in trials):
        print(
            f"{experiment.name}: task {experiment.task}, scale {experiment.scale}, "
            f"{experiment.workers} workers. {experiment.about}"
        )
    for trial in trials:
        state, task = "finished" if trial in finished else "to do", trial.experiment.task
        print(f"{trial.name}  seed {trial.seed}  {state}  {task}  {trial.variant.recipe}")


def print_tables(reproduction: Reproduction, results: _Results) -> None:
    console = wrapped_console()
    for experiment in reproduction.experiments:
        rows = make_rows(experiment, results)
        if rows:
            console.print(f"\n[bold]{experiment.title}[/] ({experiment.about})")
            console.print(_table(header(experiment, rows), cells(experiment, rows)))
            for sentence in judge(rows):
                console.print(sentence)


def print_end(out: Path, *, finished: int, planned: int, reported: bool) -> None:
    """Print where everything is, and how to resume if it was stopped."""
    console = wrapped_console()
    if reported:
        console.print(f"Report: {out / 'report.html'}")
    if finished < planned:
        console.print(
            f"Stopped: {finished} of {planned} runs are finished. Everything is kept in {out}: the "
            "same command goes on."
        )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Only labels wrap on a narrow terminal: figures would be cut off."""
    table = Table(box=rich.box.SIMPLE_HEAD, padding=0, show_edge=False)
    shown = [number for number, name in enumerate(names) if name not in _LEFT_OUT]
    for number in shown:
        heading = "\n".join(names[number].rsplit(" ", 1))
        justify: JustifyMethod = "right" if number else "left"
        table.add_column(heading, justify=justify, no_wrap=number > 0, overflow="fold")
    for row in rows:
        table.add_row(*(row[number].replace(" ±", "\n±") for number in shown))
    return table
