"""How ``thinwire inspect`` shows a server's log: what was trained, what is kept, who pushed."""

from __future__ import annotations

import click

from thinwire.cli.inspect_view import print_damage, print_table, printable, shorten
from thinwire.server.contents import Contents, in_words
from thinwire.server.folder import FolderContents, WorkerPushes

_FILE_COLUMNS = ("file", "nbytes", "epoch", "pushes", "updates", "versions", "state")
_WORKER_COLUMNS = ("worker", "pushes", "nbytes", "nbytes/push", "step", "on version", "rate")


def print_folder(folder: FolderContents, *, rows: int) -> None:
    """All of it; at most ``rows`` files."""
    _print_head(folder)
    workers = folder.workers()
    if workers:
        click.echo("\nPushes that are kept, and the newest of each worker:")
        print_table(_WORKER_COLUMNS, [_worker_cells(one) for one in workers])
    click.echo()
    print_table(_FILE_COLUMNS, shorten([_file_cells(one) for one in folder.files], rows))
    if len(folder.files) > rows:
        click.echo(f"Files not shown: {len(folder.files) - rows}; --rows shows more.")
    click.echo()
    _print_end(folder)


def _print_head(folder: FolderContents) -> None:
    nbytes = sum(one.nbytes for one in folder.files)
    run = f"run {folder.files[0].rows[0].run}, " if folder.files[0].rows else ""
    files = "1 file" if len(folder.files) == 1 else f"{len(folder.files)} files"
    click.echo(f"{folder.path}: log, {run}{files}, {nbytes} bytes")
    description = folder.description
    if description is None:
        click.echo("No worker has said what it trains, or that record is deleted.")
        return
    click.echo(f"Trained: {in_words(description)}")
    click.echo(f"Recipe:  {printable(description.recipe)}")


def _worker_cells(one: WorkerPushes) -> tuple[str, ...]:
    numbers = (one.worker, one.pushes, one.nbytes, one.nbytes // one.pushes, one.step, one.version)
    return (*map(str, numbers), "" if one.rate is None else f"{one.rate:g}")


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
    for one in folder.files:
        print_damage(one)
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
