"""What is in a log folder, for people to look at: values only, printed elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import LogError
from thinwire.server.contents import Contents, read_contents
from thinwire.server.recovery import recover
from thinwire.server.segment import find_segments
from thinwire.server.snapshot import find_snapshots


@dataclass(frozen=True, slots=True)
class FolderContents:
    """Segments, then snapshots, oldest first.

    ``replay`` says what a restart would do, ``problem`` why there can be none.
    """

    path: Path
    files: list[Contents]
    replay: str
    problem: str | None


def read_folder(path: Path) -> FolderContents:
    """All files of a log. Raises LogError if there are none."""
    paths = [*find_segments(path).values(), *find_snapshots(path).values()]
    if not paths:
        raise LogError(f"log: {path} has no segments and no snapshots: is it the folder of a log?")
    files = [read_contents(one) for one in paths]
    try:
        found = recover(path)
    except LogError as error:
        return FolderContents(path, files, "", str(error))
    begin = "the beginning" if found.snapshot is None else f"the snapshot of record {found.first}"
    count = found.next_record - found.first
    return FolderContents(path, files, f"from {begin} and replay {count} records", None)
