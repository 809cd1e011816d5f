"""``Inbox``: events in order until they are received, and the credits of flow control."""

from __future__ import annotations

import struct
from collections import deque

from thinwire.transport.base import PeerGone, PeerId, Received
from thinwire.transport.peer_limits import TransportLimits

_COUNTS = struct.Struct("<QQ")
COUNTS_NBYTES = _COUNTS.size


class Flow:
    """Flow control of one connection: credits are sent after each quarter of what may be unread."""

    def __init__(self, *, in_nbytes: int, in_messages: int) -> None:
        self._quarter = (max(1, in_nbytes // 4), max(1, in_messages // 4))
        self._sent = self._read_there = self._read_here = self._credited = (0, 0)

    def sent(self, nbytes: int) -> None:
        self._sent = _plus(self._sent, nbytes)

    def unread(self) -> tuple[int, int]:
        """Bytes and messages that the other side has not read, by its last credits."""
        return _minus(self._sent, self._read_there)

    def take_credits(self, counts: bytes) -> bool:
        """Take in what the other side has read. False if it cannot have read that."""
        nbytes, messages = _COUNTS.unpack(counts)
        before, most = self._read_there, self._sent
        if not (before[0] <= nbytes <= most[0] and before[1] < messages <= most[1]):
            return False
        self._read_there = (nbytes, messages)
        return True

    def read(self, nbytes: int) -> None:
        self._read_here = _plus(self._read_here, nbytes)

    def due(self) -> bool:
        """Whether it is time to send credits."""
        nbytes, messages = _minus(self._read_here, self._credited)
        return nbytes >= self._quarter[0] or messages >= self._quarter[1]

    def credits(self) -> bytes:
        """How much was read here, for the other side."""
        self._credited = self._read_here
        return _COUNTS.pack(*self._credited)


def _plus(counts: tuple[int, int], nbytes: int) -> tuple[int, int]:
    return counts[0] + nbytes, counts[1] + 1


def _minus(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] - b[0], a[1] - b[1]


class Inbox:
    """Events of all peers. It is bounded if its owner drops a peer that ``excess`` names."""

    def __init__(self, limits: TransportLimits) -> None:
        self._limits = limits
        self._events: deque[Received | PeerGone] = deque()
        self._nbytes: dict[PeerId, int] = {}
        self._messages: dict[PeerId, int] = {}
        self._total_nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._events)

    def add(self, event: Received | PeerGone) -> None:
        self._events.append(event)
        if isinstance(event, Received):
            self._count(event.peer, len(event.frame), 1)

    def take(self) -> Received | PeerGone:
        event = self._events.popleft()
        if isinstance(event, Received):
            self._count(event.peer, -len(event.frame), -1)
        return event

    def _count(self, peer: PeerId, nbytes: int, messages: int) -> None:
        self._total_nbytes += nbytes
        self._nbytes[peer] = self._nbytes.get(peer, 0) + nbytes
        self._messages[peer] = self._messages.get(peer, 0) + messages
        if not self._messages[peer]:
            del self._nbytes[peer], self._messages[peer]

    def excess(self, peer: PeerId) -> tuple[PeerId, str] | None:
        """Who has to go after a frame of ``peer`` was added, and why."""
        nbytes, messages = self._nbytes[peer], self._messages[peer]
        if nbytes > self._limits.max_unread_nbytes or messages > self._limits.max_unread_messages:
            return peer, f"it sends on while {messages} messages, {nbytes} bytes, are unread"
        if self._total_nbytes > self._limits.max_unread_total_nbytes:
            most = max(self._nbytes, key=self._nbytes.__getitem__)
            return most, (
                f"{self._total_nbytes} bytes of all peers are unread, of it the most, "
                f"{self._nbytes[most]}"
            )
        return None

    def remove_frames(self, peer: PeerId) -> None:
        """Forget what one peer sent, but not that it is gone."""
        self._events = deque(
            event for event in self._events if event.peer != peer or isinstance(event, PeerGone)
        )
        self._total_nbytes -= self._nbytes.pop(peer, 0)
        self._messages.pop(peer, None)

    def remove(self, peer: PeerId) -> None:
        """Forget everything of one peer."""
        self.remove_frames(peer)
        self._events = deque(event for event in self._events if event.peer != peer)
