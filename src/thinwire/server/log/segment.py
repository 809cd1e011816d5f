"""``Segment``: writes the newest file of a log, groups of records, each followed by its commit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from thinwire.files import Buffer
from thinwire.server.log.files import explained, find_numbered, numbered_path, write_at, write_whole
from thinwire.server.log.records import Commit, Head, pack_control


def segment_path(folder: Path, number: int) -> Path:
    return numbered_path(folder, "segment", number)


def find_segments(folder: Path) -> dict[int, Path]:
    """Path by number, the newest last. Raises LogError if the folder cannot be listed."""
    return find_numbered(folder, "segment")


class Segment:
    """Writes one segment: ``count`` records so far, up to byte ``end``."""

    def __init__(
        self, path: Path, head: Head, *, run: int, epoch: int, replaces: bool = False
    ) -> None:
        """Make a new file; its head is on the disk when this returns.

        ``replaces`` a file of this name that holds no records. Otherwise a file that exists stays
        as it is, and is a LogError.
        """
        self.path = path
        self.number = head.number
        self.count = 0
        first = pack_control(head, run=run, epoch=epoch)
        self.end = write_whole(path, [(first,)], replaces=replaces)
        self._head, self._run, self._epoch = head, run, epoch
        with explained(path, "opened"):
            self._fd = os.open(path, os.O_WRONLY)

    @property
    def next_record(self) -> int:
        """The number of the next record."""
        return self._head.first + self.count

    def write(self, parts: Sequence[Buffer], *, count: int, nbytes: int, sync: bool) -> None:
        """Write a group of ``count`` records: all of it or, if this raises, nothing."""
        control = Commit(self._head.salt, self.next_record, count, nbytes)
        commit = pack_control(control, run=self._run, epoch=self._epoch)
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
        """Cut what was written of the last group. If that fails, opening the log cuts it."""
        with suppress(OSError):
            os.ftruncate(self._fd, self.end)

    def sync(self) -> None:
        with explained(self.path, "written"):
            os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)
