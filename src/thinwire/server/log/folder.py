"""``read_folder``: all files of a log, as values for a command to print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import LogError
from thinwire.server.log.contents import Contents, Row, read_contents
from thinwire.server.log.recovery import recover
from thinwire.server.log.segment import find_segments
from thinwire.server.log.snapshot import find_snapshots
from thinwire.wire.messages import Describe


@dataclass(frozen=True, slots=True)
class WorkerPushes:
    """The pushes of one worker in the log. ``version`` is what the newest was computed on."""

    worker: int
    pushes: int
    nbytes: int
    step: int
    version: int
    rate: float | None


@dataclass(frozen=True, slots=True)
class FolderContents:
    """Segments, then snapshots, oldest first.

    ``replay`` says what a restart would do, ``problem`` why there can be none.
    """

    path: Path
    files: list[Contents]
    replay: str
    problem: str | None

    @property
    def description(self) -> Describe | None:
        """What is trained, if the log still has it."""
        rows = (row for file in self.files for row in file.rows)
        return next((row.description for row in rows if row.description is not None), None)

    @property
    def versions(self) -> tuple[int, int]:
        """The updates of versions after the first number are kept, up to the second."""
        updates = [row.version or 0 for row in self._records() if row.kind == "update"]
        heads = [file.rows[0].version or 0 for file in self._segments() if file.rows]
        since = heads[0] if heads else 0
        return since, max(updates, default=since)

    def workers(self) -> list[WorkerPushes]:
        """One for each worker, by rank."""
        pushes: dict[int, list[Row]] = {}
        for row in self._records():
            if row.kind == "push" and row.worker is not None:
                pushes.setdefault(row.worker, []).append(row)
        return [_sum(worker, rows) for worker, rows in sorted(pushes.items())]

    def _segments(self) -> Iterator[Contents]:
        return (file for file in self.files if file.what == "segment")

    def _records(self) -> Iterator[Row]:
        return (row for file in self._segments() for row in file.rows)


def _sum(worker: int, rows: list[Row]) -> WorkerPushes:
    newest = max(rows, key=lambda row: row.step)
    nbytes = sum(row.nbytes for row in rows)
    return WorkerPushes(worker, len(rows), nbytes, newest.step, newest.version or 0, newest.rate)


def read_folder(path: Path) -> FolderContents:
    """All files of a log. Raises LogError if there are none."""
    while True:
        paths = _paths(path)
        if not paths:
            raise LogError(
                f"log: {path} has no segments and no snapshots: is it the folder of a log?"
            )
        try:
            contents = _read(path, paths)
        except LogError:
            if paths == _paths(path):
                raise
            continue
        # A running server adds and deletes files: then some may seem to be missing.
        if contents.problem is None or paths == _paths(path):
            return contents


def _paths(path: Path) -> list[Path]:
    return [*find_segments(path).values(), *find_snapshots(path).values()]


def _read(path: Path, paths: list[Path]) -> FolderContents:
    files = [read_contents(file) for file in paths]
    try:
        recovery = recover(path)
    except LogError as error:
        return FolderContents(path, files, "", str(error))
    first = recovery.first
    begin = "the beginning" if recovery.snapshot is None else f"the snapshot of record {first}"
    count = recovery.next_record - first
    return FolderContents(path, files, f"from {begin} and replay {count} records", None)
