"""``Inbox``: events until the owner takes them, and whether more of a peer may be read."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from thinwire.transport.base import PeerGone, PeerId, Received
from thinwire.transport.peer_limits import TransportLimits
from thinwire.transport.tcp.peer import Peer


class Inbox:
    def __init__(self, limits: TransportLimits) -> None:
        self._limits, self._nbytes = limits, 0
        self._events: deque[Received | PeerGone] = deque()

    def __bool__(self) -> bool:
        return bool(self._events)

    def has_room(self, peer: Peer) -> bool:
        """Else it is not read, and TCP makes it wait at the other end: backpressure."""
        most = self._limits
        return (
            peer.unread_messages < most.max_unread_messages
            and peer.unread_nbytes < most.max_unread_nbytes
            and self._nbytes < most.max_unread_total_nbytes
        )

    def add(self, event: Received | PeerGone, peer: Peer) -> None:
        self._events.append(event)
        if isinstance(event, Received):
            self._count(peer, len(event.frame), 1)

    def take(self, peers: Mapping[PeerId, Peer]) -> Received | PeerGone:
        event = self._events.popleft()
        if isinstance(event, Received):
            self._count(peers.get(event.peer), -len(event.frame), -1)
        return event

    def _count(self, peer: Peer | None, nbytes: int, messages: int) -> None:
        self._nbytes += nbytes
        if peer is not None:
            peer.unread_nbytes += nbytes
            peer.unread_messages += messages

    def forget(self, id_: PeerId | None, peer: Peer | None) -> None:
        """The frames of a peer; if there is no such ``peer`` any more, also that it is gone."""
        events, self._events = self._events, deque()
        for event in events:
            if event.peer != id_ or (peer is not None and isinstance(event, PeerGone)):
                self._events.append(event)
            elif isinstance(event, Received):
                self._count(peer, -len(event.frame), -1)
