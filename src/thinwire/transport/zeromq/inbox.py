"""What has happened and nobody has asked for yet, in order, and how much memory it takes."""

from __future__ import annotations

from collections import deque

from thinwire.transport.base import PeerGone, PeerId, Received
from thinwire.transport.limits import TransportLimits


class Inbox:
    """Events of all peers. Bounded by whoever acts on ``excess``."""

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
