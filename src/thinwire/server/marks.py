"""The frames that a log adds to those it keeps. docs/log-format.md is the specification.

Bytes in, objects out, as in ``wire``: no files here. Kinds from 0x80 on never travel, so a record
is never taken for one of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

from thinwire import errors
from thinwire.wire.body import Reader, Writer
from thinwire.wire.frame import HEADER_NBYTES, SERVER, Frame, Limits, pack

FIRST_KIND = 0x80
SALT_NBYTES = 8

FILES = Limits(max_body_nbytes=0xFFFF_FFFF, max_text_nbytes=0xFFFF_FFFF)
"""What is read from files: every length is compared with the file's own before it is used."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first frame of a segment.

    ``number`` is the segment's, ``first`` that of its first record, ``version`` the highest of all
    updates in earlier segments. ``salt`` is drawn at random and repeated in every commit, because
    a worker that could foretell a commit could hide one in a payload.
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

Mark = TypeVar("Mark", Head, Commit)


def pack_mark(mark: Head | Commit, *, run: int, epoch: int) -> bytes:
    """The whole frame."""
    body = Writer(type(mark).__name__.lower(), FILES)
    mark.write(body)
    return b"".join(pack(Frame(mark.kind, run, epoch, SERVER, 0, body.finish())))


def read_mark(frame: Frame, cls: type[Mark]) -> Mark:
    """What ``frame`` says, which must be a ``cls``. Raises RemoteProtocolError, as ``unpack``."""
    where = cls.__name__.lower()
    if frame.kind != cls.kind or len(frame.body) != cls.body_nbytes:
        raise errors.RemoteProtocolError(
            f"{where}: kind {frame.kind} with a body of {len(frame.body)} bytes, expected kind "
            f"{cls.kind} with {cls.body_nbytes}"
        )
    return cls.read(Reader(where, frame.body, FILES))
