"""What ``thinwire inspect`` prints of a file of frames or a log folder, in a terminal or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thinwire.recipe_names import typed_stored_recipe
from thinwire.server.log.contents import Contents, Row, in_words
from thinwire.server.log.folder import FolderContents, WorkerPushes

_FRAME_COLUMNS = ("byte", "nbytes", "kind", "worker", "step", "version", "pieces", "detail")
_WORDS = ("kind", "detail", "file", "state")  # the other columns are numbers, to the right


def print_file(contents: Contents, *, rows: int) -> None:
    """Print the frames of one file."""
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
    """At most ``rows``, half from the beginning and half from the end."""
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
    """Without control characters: the file may come from an untrusted source."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def print_damage(contents: Contents) -> None:
    """Print where the file is damaged, if it is."""
    damage = contents.damage
    if damage is None:
        return
    click.secho(f"Damaged: {printable(str(damage))}.", fg="red")
    if damage.is_torn_tail and contents.what == "segment":
        click.echo(f"No commit follows: a crash may have left its last {damage.nbytes} bytes.")


def print_table(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows of cells under the names of their columns."""
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
    return {"problem": problem, "files": [_file_json(file) for file in files]}


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


_FILE_COLUMNS = ("file", "nbytes", "epoch", "pushes", "updates", "versions", "state")
_WORKER_COLUMNS = ("worker", "pushes", "nbytes", "nbytes/push", "step", "on version", "rate")


def print_folder(folder: FolderContents, *, rows: int) -> None:
    """Print all of it; at most ``rows`` files."""
    _print_head(folder)
    workers = folder.workers()
    if workers:
        click.echo("\nPushes that are kept, and the newest of each worker:")
        print_table(_WORKER_COLUMNS, [_worker_cells(pushes) for pushes in workers])
    click.echo()
    print_table(_FILE_COLUMNS, shorten([_file_cells(file) for file in folder.files], rows))
    if len(folder.files) > rows:
        click.echo(f"Files not shown: {len(folder.files) - rows}; --rows shows more.")
    click.echo()
    _print_end(folder)


def _print_head(folder: FolderContents) -> None:
    nbytes = sum(file.nbytes for file in folder.files)
    run = f"run {folder.files[0].rows[0].run}, " if folder.files[0].rows else ""
    files = "1 file" if len(folder.files) == 1 else f"{len(folder.files)} files"
    click.echo(f"{folder.path}: log, {run}{files}, {nbytes} bytes")
    description = folder.description
    if description is None:
        click.echo(
            "The log does not describe the model: no worker has joined, or that record is deleted."
        )
        return
    click.echo(f"Trained: {in_words(description)}")
    click.echo(f"Recipe:  {printable(typed_stored_recipe(description.recipe))}")


def _worker_cells(row: WorkerPushes) -> tuple[str, ...]:
    numbers = (row.worker, row.pushes, row.nbytes, row.nbytes // row.pushes, row.step, row.version)
    return (*map(str, numbers), "" if row.rate is None else f"{row.rate:g}")


def _file_cells(contents: Contents) -> tuple[str, ...]:
    kinds = [row.kind for row in contents.rows]
    versions = [row.version or 0 for row in contents.rows if row.kind == "update"]
    return (
        contents.path.name,
        str(contents.nbytes),
        str(contents.rows[0].epoch) if contents.rows else "",
        str(kinds.count("push")),
        str(kinds.count("update")),
        _range(min(versions), max(versions)) if versions else "",
        "whole" if contents.damage is None else "damaged",
    )


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _print_end(folder: FolderContents) -> None:
    for file in folder.files:
        print_damage(file)
    click.echo(_kept(*folder.versions))
    if folder.problem is None:
        click.echo(f"A server would start {folder.replay}.")
    else:
        click.secho(f"No server can start: {printable(folder.problem)}.", fg="red")


def _kept(since: int, last: int) -> str:
    if last == since:
        return "No updates are kept."
    return (
        f"Updates of versions {_range(since + 1, last)} are kept: a worker or a checkpoint of "
        f"version {since} or later can be brought to {last}."
    )
