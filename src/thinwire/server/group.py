"""Records that wait for their commit. Pure: no files, and nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from thinwire.errors import LocalProtocolError
from thinwire.server.disk import Buffer
from thinwire.server.index import Place, place_of
from thinwire.server.marks import FILES, FIRST_KIND
from thinwire.wire.frame import HEADER_NBYTES, frame_kind, frame_nbytes

_VERSION_NBYTES = 8


@dataclass(slots=True)
class Group:
    """Frames in order. Their buffers belong to the caller, who leaves them alone until the commit.

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
        return [Place(one.version, segment, start + one.offset) for one in self.updates]


def _front(parts: Sequence[Buffer], nbytes: int) -> memoryview:
    front = b""
    for part in parts:
        front += bytes(memoryview(part)[: nbytes - len(front)])
        if len(front) == nbytes:
            break
    return memoryview(front)


def _check(front: memoryview, found: int) -> tuple[int, int]:
    """Kind and nbytes of the frame that begins with ``front``; its checksum is not looked at."""
    nbytes, kind = frame_nbytes(front, limits=FILES), frame_kind(front)
    if found != nbytes:
        raise LocalProtocolError(f"log: a frame of {found} bytes, its header says {nbytes}")
    if kind >= FIRST_KIND:
        raise LocalProtocolError(f"log: a frame of kind {kind}, expected one below {FIRST_KIND}")
    return kind, nbytes
