"""A table of results: pretty in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

Line = tuple[str, ...]


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
