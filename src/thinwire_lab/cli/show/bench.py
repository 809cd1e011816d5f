"""``RoundsProgress``, ``print_rows`` and ``print_notes``: what all benchmarks print."""

from __future__ import annotations

from collections.abc import Sequence

import click
import rich.progress
from rich.console import Console
from rich.table import Table

from thinwire.cli.show.progress import ProgressDisplay
from thinwire_lab.bench.machine import BUSY


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.{1 if seconds < 0.1 else 0}f}"


def closing(machine: object, *, interrupted: bool, others: float) -> str:
    """Where it was measured, and reasons not to trust the numbers."""
    parts = [f"Measured on {machine}."]
    if interrupted:
        parts.append("It was interrupted: some rounds are missing.")
    if others > BUSY:
        parts.append(
            f"Other processes used {others:.0%} of the machine: repeat the run when it is quiet."
        )
    return " ".join(parts)


class RoundsProgress(ProgressDisplay):
    """A bar on a terminal, a line for every round elsewhere; on stderr, beside the result."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._console = Console(stderr=True)
        progress = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        super().__init__(progress)
        self._task = self._progress.add_task("starting", total=None)
        self._shown = ""

    def show(self, round_: int, what: str, *, part: str = "") -> None:
        """Show the round, from 0 (the warm-up), of a ``part`` of the run, and what comes next."""
        text = part + (f"round {round_} of {self._rounds}" if round_ else "warming up")
        if self._console.is_terminal:
            self._progress.update(
                self._task,
                description=f"{text}: {what:<50}",
                total=self._rounds,
                completed=round_,
            )
        elif text != self._shown:
            self._shown = text
            click.echo(text, err=True)


Line = tuple[str, ...]


def print_notes(console: Console, legend: str, remarks: str) -> None:
    """Print what the columns mean, and where it was measured, below the tables."""
    wrap = not console.is_terminal
    console.print(legend, style="dim", soft_wrap=wrap, highlight=False)
    console.print(remarks, soft_wrap=wrap, highlight=False)


def print_rows(
    console: Console, title: str, columns: Line, lines: Sequence[Line], *, left: int
) -> None:
    """The first ``left`` columns are words, the others numbers."""
    if console.is_terminal:
        console.print(_table(title, columns, lines, left))
    else:
        _echo_lines(title, columns, lines, left)


def _table(title: str, columns: Line, lines: Sequence[Line], left: int) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    # Only the first may wrap, so that a narrow terminal costs lines and not digits.
    table.add_column(columns[0], overflow="fold")
    for name in columns[1:left]:
        table.add_column(name, no_wrap=True)
    for name in columns[left:]:
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table


def _echo_lines(title: str, columns: Line, lines: Sequence[Line], left: int) -> None:
    widths = [max(len(line[i]) for line in (columns, *lines)) for i in range(len(columns))]
    click.echo(title)
    for line in (columns, *lines):
        cells = list(zip(line, widths, strict=True))
        words = [f"{cell:<{width}}" for cell, width in cells[:left]]
        words += [f"{cell:>{width}}" for cell, width in cells[left:]]
        click.echo("  ".join(words).rstrip())
