"""What ``thinwire bench training`` prints: progress of each run, then a table for every link."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import rich.progress
from rich.console import Console

from thinwire.cli.show.progress import ProgressDisplay
from thinwire_lab.bench.training.report import COLUMNS, LEGEND, LinkTable
from thinwire_lab.bench.training.result import TrainingResult
from thinwire_lab.bench.training.settings import TrainingBench, TrainingRun
from thinwire_lab.cli.show.bench import print_notes, print_rows


class TrainingProgress(ProgressDisplay):
    """See ``Watcher``. A bar for the current run on a terminal, lines elsewhere; on stderr."""

    def __init__(self, bench: TrainingBench) -> None:
        self._console = Console(stderr=True, highlight=False)
        progress = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        super().__init__(progress)
        self._task = self._progress.add_task("starting", total=bench.runs()[0].steps)
        self._name = ""

    def begin(self, run: TrainingRun, *, number: int, count: int) -> None:
        self._name = f"{number} of {count}: {run.way.label} over {run.link.name}"
        self._progress.reset(self._task, description=self._name)
        self._say(self._name)

    def show(self, steps: int, seconds: float, loss: float | None) -> None:
        scored = "" if loss is None else f", held-out loss {loss:.4f}"
        text = f"step {steps}, {seconds / 60:.1f} min{scored}"
        self._progress.update(self._task, completed=steps, description=f"{self._name}: {text}")
        if not self._console.is_terminal:
            self._say(f"  {text}")

    def end(self, result: TrainingResult) -> None:
        end = f"loss {result.points[-1].loss:.4f}" if result.points else "timed only"
        self._say(f"  {end}, {1e3 * result.step_seconds:.0f} ms a step")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=not self._console.is_terminal)


def print_training(tables: Sequence[LinkTable], report: Path) -> None:
    """Print a table for each link, a legend, and where the report is."""
    console = Console(highlight=False)
    for table in tables:
        print_rows(console, table.title, COLUMNS, table.cells(), left=1)
    print_notes(console, f"{LEGEND}\n", f"Report: {report}")
