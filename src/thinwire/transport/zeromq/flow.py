"""How much of what was sent the other side has really read.

ZeroMQ reads ahead without a bound (see port.py), so TCP's own brake does not work. Instead each
side says now and then how much it has read, in a message of two parts: an empty one and two
little-endian u64, the bytes and the messages read since the connection began. Frames have one part.
"""

from __future__ import annotations

import struct

_COUNTS = struct.Struct("<QQ")
COUNTS_NBYTES = _COUNTS.size


class Flow:
    """The counters of one connection. What comes in is told in quarters of what may be unread."""

    def __init__(self, *, in_nbytes: int, in_messages: int) -> None:
        self._quarter = (max(1, in_nbytes // 4), max(1, in_messages // 4))
        self._sent = self._read_there = self._read_here = self._told = (0, 0)

    def sent(self, nbytes: int) -> None:
        self._sent = _plus(self._sent, nbytes)

    def unread(self) -> tuple[int, int]:
        """Bytes and messages that the other side has not read, as far as it has told."""
        return _minus(self._sent, self._read_there)

    def hear(self, counts: bytes) -> bool:
        """Take in what the other side says. False if that cannot be."""
        nbytes, messages = _COUNTS.unpack(counts)
        before, most = self._read_there, self._sent
        if not (before[0] <= nbytes <= most[0] and before[1] < messages <= most[1]):
            return False
        self._read_there = (nbytes, messages)
        return True

    def read(self, nbytes: int) -> None:
        self._read_here = _plus(self._read_here, nbytes)

    def due(self) -> bool:
        """Whether it is time to say how much was read."""
        nbytes, messages = _minus(self._read_here, self._told)
        return nbytes >= self._quarter[0] or messages >= self._quarter[1]

    def tell(self) -> bytes:
        """What to say."""
        self._told = self._read_here
        return _COUNTS.pack(*self._told)


def _plus(counts: tuple[int, int], nbytes: int) -> tuple[int, int]:
    return counts[0] + nbytes, counts[1] + 1


def _minus(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] - b[0], a[1] - b[1]
