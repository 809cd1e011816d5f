"""How ``thinwire inspect`` shows a file of frames, in a terminal and without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thinwire.server.contents import Contents, Row

_FRAME_COLUMNS = ("byte", "nbytes", "kind", "worker", "step", "version", "pieces", "detail")
_WORDS = ("kind", "detail", "file", "state")  # the other columns are numbers, to the right


def print_file(contents: Contents, *, rows: int) -> None:
    """The frames of one file."""
    click.echo(_title(contents))
    shown = shorten([_frame_cells(row) for row in contents.rows], rows)
    print_table(_FRAME_COLUMNS, shown)
    if len(contents.rows) > rows:
        click.echo(f"Frames not shown: {len(contents.rows) - rows}; --rows shows more.")
    print_damage(contents)


def _title(contents: Contents) -> str:
    run = f", run {contents.rows[0].run}, epoch {contents.rows[0].epoch}" if contents.rows else ""
    return f"{contents.path}: {contents.what}, {contents.nbytes} bytes{run}"


def shorten(cells: list[tuple[str, ...]], rows: int) -> list[tuple[str, ...]]:
    """At most so many, half from the beginning and half from the end."""
    if len(cells) <= rows:
        return cells
    begin = -(-rows // 2)
    gap = ("…", *[""] * (len(cells[0]) - 1))
    return [*cells[:begin], gap, *cells[len(cells) - (rows - begin) :]]


def _frame_cells(row: Row) -> tuple[str, ...]:
    worker = "server" if row.worker is None else str(row.worker)
    version, pieces = (_number(n) for n in (row.version, row.pieces))
    return (
        *(str(row.offset), str(row.nbytes), row.kind, worker),
        *(str(row.step), version, pieces, printable(row.detail)),
    )


def printable(text: str) -> str:
    """Without what would move the cursor: whoever wrote the file is not trusted."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def print_damage(contents: Contents) -> None:
    """In which place, if there is one."""
    damage = contents.damage
    if damage is None:
        return
    click.secho(f"Damaged: {printable(str(damage))}.", fg="red")
    if damage.is_torn_tail and contents.what == "segment":
        click.echo(f"No commit follows: its last {damage.nbytes} bytes may be what a crash left.")


def print_table(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Rows of cells under the names of their columns."""
    console = Console()
    if not rows:
        return
    if not console.is_terminal:
        _echo_lines(columns, rows)
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in columns:
        is_last = name == columns[-1]
        justify = "left" if name in _WORDS else "right"
        table.add_column(name, justify=justify, no_wrap=not is_last)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*map(Text, row))  # not str, in which [brackets] would be markup
    console.print(table)


def _echo_lines(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    lines = [tuple(columns), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = [
            f"{cell:{'<' if name in _WORDS else '>'}{width}}"
            for cell, name, width in zip(line, columns, widths, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def as_json(files: Sequence[Contents], problem: str | None) -> dict[str, object]:
    """Everything, in plain types."""
    return {"problem": problem, "files": [_file_json(one) for one in files]}


def _file_json(contents: Contents) -> dict[str, object]:
    damage = contents.damage
    return {
        "path": str(contents.path),
        "what": contents.what,
        "nbytes": contents.nbytes,
        "frames": [asdict(row) for row in contents.rows],
        "damage": None
        if damage is None
        else {
            "offset": damage.offset,
            "nbytes": damage.nbytes,
            "reason": damage.reason,
            "torn_tail": damage.is_torn_tail,
        },
    }
