"""How benchmarks of processes show progress, in a terminal and without one."""

from __future__ import annotations

import click
import rich.progress
from rich.console import Console

from thinwire.cli.bars import Bars


class RoundsProgress(Bars):
    """A bar in a terminal, a line for every round elsewhere; on stderr, as it is not the result."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._console = Console(stderr=True)
        bars = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        super().__init__(bars)
        self._task = self._bars.add_task("starting", total=None)
        self._shown = ""

    def show(self, round_: int, what: str, *, part: str = "") -> None:
        """The round, from 0 (the warm-up), of a ``part`` of the run, and what comes next."""
        text = part + (f"round {round_} of {self._rounds}" if round_ else "warming up")
        if self._console.is_terminal:
            self._bars.update(
                self._task,
                description=f"{text}: {what:<50}",
                total=self._rounds,
                completed=round_,
            )
        elif text != self._shown:
            self._shown = text
            click.echo(text, err=True)
