"""How far ``thinwire replay`` is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import click
import rich.progress
from rich.console import Console

from thinwire.cli.bars import Bars

PLAIN_LINES = 5
"""How many lines are printed where there is no terminal to draw a bar on."""


class Progress(Bars):
    """From version ``start`` to ``stop``."""

    def __init__(self, start: int, stop: int) -> None:
        self._start, self._stop = start, stop
        console = Console(highlight=False)
        self._is_terminal = console.is_terminal
        bars = rich.progress.Progress(
            "version {task.fields[version]}",
            rich.progress.BarColumn(bar_width=30),
            rich.progress.TaskProgressColumn(),
            rich.progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        super().__init__(bars)
        self._task = self._bars.add_task("", total=stop - start, version=start)

    def show(self, version: int) -> None:
        """Call it for every version that is done."""
        done = version - self._start
        if self._is_terminal:
            self._bars.update(self._task, completed=done, version=version)
        elif done % max(1, (self._stop - self._start) // PLAIN_LINES) == 0:
            click.echo(f"version {version} of {self._stop}")
