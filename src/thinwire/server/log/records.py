"""What a segment consists of: records, the control frames ``Head`` and ``Commit``, their index.

Pure: no files, and nothing is copied. docs/log-format.md has the bytes.
"""

from __future__ import annotations

from bisect import bisect_right, insort_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from thinwire import errors
from thinwire.errors import LocalProtocolError
from thinwire.files import Buffer
from thinwire.wire.body import Reader, Writer
from thinwire.wire.frame import HEADER_NBYTES, SERVER, Frame, frame_kind, frame_nbytes, pack
from thinwire.wire.limits import Limits
from thinwire.wire.messages import Update

FIRST_KIND = 0x80
"""Kinds of control frames. Records are frames of lower kinds."""

SALT_NBYTES = 8

FILES = Limits(max_body_nbytes=0xFFFF_FFFF, max_text_nbytes=0xFFFF_FFFF)
"""Limits of files, which bound themselves: a length is compared with the file's before its use."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first frame of a segment.

    ``number`` is the segment's, ``first`` that of its first record, ``version`` the highest of all
    updates in earlier segments. ``salt`` is drawn at random and repeated in every commit, because
    a worker that could predict a commit could hide one in a payload.
    """

    kind: ClassVar[int] = FIRST_KIND + 1
    body_nbytes: ClassVar[int] = 3 * 8 + SALT_NBYTES
    number: int
    first: int
    version: int
    salt: bytes

    def write(self, body: Writer) -> None:
        body.uint(self.number, 8)
        body.uint(self.first, 8)
        body.uint(self.version, 8)
        body.raw(self.salt)

    @classmethod
    def read(cls, body: Reader) -> Head:
        return cls(body.uint(8), body.uint(8), body.uint(8), body.raw(SALT_NBYTES))


@dataclass(frozen=True, slots=True)
class Commit:
    """The last frame of a group: the ``count`` records before it, from ``first`` on, count.

    ``nbytes`` are those of the records. A group without its commit was never accepted.
    """

    kind: ClassVar[int] = FIRST_KIND + 2
    body_nbytes: ClassVar[int] = SALT_NBYTES + 8 + 4 + 8
    salt: bytes
    first: int
    count: int
    nbytes: int

    def write(self, body: Writer) -> None:
        body.raw(self.salt)
        body.uint(self.first, 8)
        body.uint(self.count, 4)
        body.uint(self.nbytes, 8)

    @classmethod
    def read(cls, body: Reader) -> Commit:
        return cls(body.raw(SALT_NBYTES), body.uint(8), body.uint(4), body.uint(8))


COMMIT_NBYTES = HEADER_NBYTES + Commit.body_nbytes

Control = TypeVar("Control", Head, Commit)


def pack_control(control: Head | Commit, *, run: int, epoch: int) -> bytes:
    """The whole frame."""
    body = Writer(type(control).__name__.lower(), FILES)
    control.write(body)
    return b"".join(pack(Frame(control.kind, run, epoch, SERVER, 0, body.finish())))


def read_control(frame: Frame, cls: type[Control]) -> Control:
    """The ``cls`` in ``frame``. Raises RemoteProtocolError, as ``unpack`` does."""
    where = cls.__name__.lower()
    if frame.kind != cls.kind or len(frame.body) != cls.body_nbytes:
        raise errors.RemoteProtocolError(
            f"{where}: kind {frame.kind} with a body of {len(frame.body)} bytes, expected kind "
            f"{cls.kind} with {cls.body_nbytes}"
        )
    return cls.read(Reader(where, frame.body, FILES))


@dataclass(frozen=True, slots=True)
class Place:
    """The frame of an update: segment and byte offset."""

    version: int
    segment: int
    offset: int


def place_of(kind: int, body: memoryview, segment: int, offset: int) -> Place | None:
    """The place of a frame at ``offset``, or None if it is no update."""
    if kind != Update.kind:
        return None
    # Every body of an update begins with its version, and this is called for every one of them.
    return Place(Reader("update", body, FILES).uint(8), segment, offset)


class Index:
    """Places by version, those of one version in the order of the log.

    Versions count per piece and pieces close in any order, so they need not come ascending; they
    nearly do, so that adding one is fast.
    """

    def __init__(self) -> None:
        self._places: list[Place] = []

    def add(self, place: Place) -> None:
        insort_right(self._places, place, key=_version)

    def after(self, version: int) -> list[Place]:
        return self._places[bisect_right(self._places, version, key=_version) :]

    def drop_before(self, segment: int) -> None:
        self._places = [place for place in self._places if place.segment >= segment]


def _version(place: Place) -> int:
    return place.version


_VERSION_NBYTES = 8


@dataclass(slots=True)
class Group:
    """Records that wait for their commit. The caller must not change their buffers until then.

    ``updates`` has offsets from the beginning of the group.
    """

    parts: list[Buffer] = field(default_factory=list)
    count: int = 0
    nbytes: int = 0
    updates: list[Place] = field(default_factory=list)

    def add(self, parts: Sequence[Buffer]) -> None:
        """Add one whole frame. Raises ProtocolError if ``parts`` are anything else."""
        front = _front(parts, HEADER_NBYTES + _VERSION_NBYTES)
        kind, nbytes = _check(front, sum(map(len, parts)))
        place = place_of(kind, front[HEADER_NBYTES:], 0, self.nbytes)
        self.updates += [] if place is None else [place]
        self.parts += parts
        self.count += 1
        self.nbytes += nbytes

    def places(self, segment: int, start: int) -> list[Place]:
        """Where the updates are once the group is written at ``start`` of ``segment``."""
        return [Place(at.version, segment, start + at.offset) for at in self.updates]


def _front(parts: Sequence[Buffer], nbytes: int) -> memoryview:
    front = b""
    for part in parts:
        front += bytes(memoryview(part)[: nbytes - len(front)])
        if len(front) == nbytes:
            break
    return memoryview(front)


def _check(front: memoryview, given: int) -> tuple[int, int]:
    """Kind and nbytes of the frame that begins with ``front``; its checksum is not checked."""
    nbytes, kind = frame_nbytes(front, limits=FILES), frame_kind(front)
    if given != nbytes:
        raise LocalProtocolError(f"log: a frame of {given} bytes, its header says {nbytes}")
    if kind >= FIRST_KIND:
        raise LocalProtocolError(f"log: a frame of kind {kind}, expected one below {FIRST_KIND}")
    return kind, nbytes
