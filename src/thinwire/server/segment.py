"""The segment that is being written: groups of records, each followed by its commit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from thinwire.server.disk import Buffer, explained, write_at, write_whole
from thinwire.server.marks import Commit, Head, pack_mark


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"segment-{number:012}"


def find_segments(folder: Path) -> dict[int, Path]:
    """Path by number, the newest last. Only names that end with digits are ours."""
    paths = {path.name.removeprefix("segment-"): path for path in folder.glob("segment-*")}
    return {int(digits): paths[digits] for digits in sorted(filter(str.isdecimal, paths), key=int)}


class Segment:
    """Writes one segment: ``count`` records so far, up to byte ``end``."""

    def __init__(self, path: Path, head: Head, *, run: int, epoch: int) -> None:
        """Make a new file, or replace one that holds no records. Its head is then on the disk."""
        self.path = path
        self.number = head.number
        self.count = 0
        self.end = write_whole(path, [(pack_mark(head, run=run, epoch=epoch),)])
        self._head, self._run, self._epoch = head, run, epoch
        with explained(path, "opened"):
            self._fd = os.open(path, os.O_WRONLY)

    @property
    def next_record(self) -> int:
        """The number of the next record."""
        return self._head.first + self.count

    def write(self, parts: Sequence[Buffer], *, count: int, nbytes: int, sync: bool) -> None:
        """Write a group of ``count`` records: all of it or, if this raises, nothing."""
        mark = Commit(self._head.salt, self.next_record, count, nbytes)
        commit = pack_mark(mark, run=self._run, epoch=self._epoch)
        try:
            with explained(self.path, "written"):
                end = write_at(self._fd, [*parts, commit], self.end)
                if sync:
                    os.fdatasync(self._fd)
        except BaseException:  # also Ctrl-C: only the last segment may have a torn tail
            self._cut()
            raise
        self.end, self.count = end, self.count + count

    def _cut(self) -> None:
        """Drop what was written of the last group. If the disk refuses, opening the log does it."""
        with suppress(OSError):
            os.ftruncate(self._fd, self.end)

    def sync(self) -> None:
        with explained(self.path, "written"):
            os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)
