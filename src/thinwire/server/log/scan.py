"""``scan``: check every byte of a segment. Damage is a value, not an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import ProtocolError, RemoteProtocolError
from thinwire.server.log.files import FrameFile
from thinwire.server.log.records import (
    COMMIT_NBYTES,
    FILES,
    FIRST_KIND,
    Commit,
    Head,
    Place,
    place_of,
    read_control,
)
from thinwire.wire.frame import MAGIC, Frame, unpack


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes at ``offset`` that cannot be used, and why.

    ``nbytes`` are from the end of the last whole group to the end of the file. ``later`` is the
    offset of a commit that was written after a commit of these bytes: where there is one they were
    accepted once, so this is damage in the middle. Without one they are a torn tail, which a crash
    leaves: a group that was not acknowledged.
    """

    path: Path
    offset: int
    nbytes: int
    reason: str
    later: int | None = None

    @property
    def is_torn_tail(self) -> bool:
        return self.later is None

    def __str__(self) -> str:
        return f"{self.path}, byte {self.offset}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Scan:
    """A segment: its head, and up to byte ``end`` ``count`` records, all of them committed."""

    path: Path
    run: int
    epoch: int
    head: Head
    end: int
    count: int
    updates: list[Place]
    damage: Damage | None

    @property
    def next_record(self) -> int:
        return self.head.first + self.count

    @property
    def version(self) -> int:
        """The highest of all updates up to the end of this segment."""
        return max([self.head.version, *(place.version for place in self.updates)])


def scan(path: Path, show: Callable[[int, Frame], None] | None = None) -> Scan | Damage:
    """Check every byte; Damage if not even the head can be read.

    ``show`` is called with every frame and its offset, also those without a commit.
    """
    with FrameFile(path) as file:
        try:
            frame = file.read()
            if frame is None:
                raise RemoteProtocolError("head: the file is empty")
            head = read_control(frame, Head)
        except ProtocolError as error:
            return Damage(path, 0, file.nbytes, str(error), later=0)
        reader = _Groups(file, head, show or _ignore)
        reader.show(0, frame)
        damage = reader.read_all()
        return Scan(
            path, frame.run, frame.epoch, head, reader.end, reader.count, reader.updates, damage
        )


def _ignore(offset: int, frame: Frame) -> None:
    pass


class _Groups:
    """The groups of one segment, up to the first that is not whole."""

    def __init__(self, file: FrameFile, head: Head, show: Callable[[int, Frame], None]) -> None:
        self._file = file
        self._head = head
        self.show = show
        self.end = file.offset
        self.count = 0
        self.updates: list[Place] = []

    def read_all(self) -> Damage | None:
        try:
            while self._read_group():
                pass
        except ProtocolError as error:
            return self._damage(self._file.offset, str(error))
        left = self._file.nbytes - self.end
        return self._damage(self.end, f"{left} bytes without a commit") if left else None

    def _read_group(self) -> bool:
        """Take over the next group; False if the file ends before its commit."""
        count, updates = 0, []
        while True:
            offset = self._file.offset
            frame = self._file.read()
            if frame is None:
                return False
            self.show(offset, frame)
            if frame.kind >= FIRST_KIND:
                break
            count += 1
            place = place_of(frame.kind, frame.body, self._head.number, offset)
            updates += [] if place is None else [place]
        self._check_commit(offset, frame, count)
        self.end, self.count = self._file.offset, self.count + count
        self.updates += updates
        return True

    def _check_commit(self, offset: int, frame: Frame, count: int) -> None:
        first = self._head.first + self.count
        expected = Commit(self._head.salt, first, count, offset - self.end)
        after, self._file.offset = self._file.offset, offset  # where the damage is, if it is one
        commit = read_control(frame, Commit)
        if commit != expected:
            raise RemoteProtocolError(f"commit: found {commit}, expected {expected}")
        self._file.offset = after

    def _damage(self, offset: int, reason: str) -> Damage:
        nbytes = self._file.nbytes - self.end
        return Damage(self._file.path, offset, nbytes, reason, later=self._later_commit())

    def _later_commit(self) -> int | None:
        """The offset of a commit of a group after the one that is not whole.

        That group's own commit proves nothing: a disk may write its end before its middle.
        """
        rest = self._file.bytes_at(self.end, self._file.nbytes - self.end)
        at = rest.find(MAGIC)
        while at >= 0:
            commit = _commit_at(rest, at)
            if commit and self._is_later(commit):
                return self.end + at
            at = rest.find(MAGIC, at + 1)
        return None

    def _is_later(self, commit: Commit) -> bool:
        ours = commit.salt == self._head.salt
        return ours and commit.first > self._head.first + self.count


def _commit_at(data: bytes, at: int) -> Commit | None:
    try:
        return read_control(unpack(memoryview(data)[at : at + COMMIT_NBYTES], limits=FILES), Commit)
    except ProtocolError:
        return None
