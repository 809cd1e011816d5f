"""``Members``: which connection is which worker, and which workers are away. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from thinwire.transport.base import PeerId
from thinwire.wire.frame import unpack
from thinwire.wire.messages import Describe, decode
from thinwire.wire.session import Session, State


@dataclass(slots=True)
class Peer:
    """One connection, its session, when it was opened, and its Describe frame until it joins."""

    id: PeerId
    session: Session
    since: float
    described: bytes = b""
    """Its Describe, packed: decoded it takes ten times as much memory."""
    wanted: int | None = None
    """It asked to catch up from this version, which happens at the end of the turn."""

    @property
    def description(self) -> Describe | None:
        message = decode(unpack(memoryview(self.described))) if self.described else None
        return message if isinstance(message, Describe) else None


@dataclass(slots=True)
class Members:
    """All connections. Times are those of the owner's clock."""

    run: int
    epoch: int
    peers: dict[PeerId, Peer] = field(default_factory=dict)
    workers: dict[int, Peer] = field(default_factory=dict)
    away_since: dict[int, float] = field(default_factory=dict)
    """Workers that are expected back."""
    ended: dict[PeerId, float] = field(default_factory=dict)
    """Connections whose session has ended, and when. The other side may not know yet."""
    ignored: Counter[PeerId] = field(default_factory=Counter)
    """How many frames came over them since; they are dropped."""

    def find(self, peer_id: PeerId, *, now: float) -> Peer | None:
        """The peer of a connection: a new one if it is new, None if its session has ended."""
        if peer_id in self.ended:
            self.ignored[peer_id] += 1
            return None
        if peer_id not in self.peers:
            self.peers[peer_id] = Peer(peer_id, Session.of_server(self.run, self.epoch), now)
        return self.peers[peer_id]

    def join(self, peer: Peer) -> None:
        self.workers[peer.session.worker] = peer
        self.away_since.pop(peer.session.worker, None)

    def end(self, peer: Peer, *, now: float) -> bool:
        """End a session; whether it was that of a worker, which is away from now on."""
        self.peers.pop(peer.id, None)
        self.ended[peer.id] = now
        if self.workers.get(peer.session.worker) is not peer:
            return False
        del self.workers[peer.session.worker]
        self.away_since[peer.session.worker] = now
        return True

    def unjoined(self, *, before: float, most: int) -> list[Peer]:
        """Peers that were opened before that time and have not joined, and the oldest of more than
        ``most``.
        """
        peers = [p for p in self.peers.values() if self.workers.get(p.session.worker) is not p]
        return [p for i, p in enumerate(peers) if p.since < before or i < len(peers) - most]

    def overdue(self, *, before: float, most: int, most_frames: int) -> list[PeerId]:
        """Connections that ended before that time, the oldest of more than ``most``, and those that
        have sent more than ``most_frames`` since. They are forgotten here.
        """
        many = len(self.ended) - most
        overdue = [
            peer_id
            for i, (peer_id, since) in enumerate(self.ended.items())
            if since < before or i < many or self.ignored[peer_id] > most_frames
        ]
        for peer_id in overdue:
            del self.ended[peer_id]
            self.ignored.pop(peer_id, None)
        return overdue

    def gone(self, peer_id: PeerId) -> Peer | None:
        """A connection was closed; returns its peer unless the session had ended before."""
        self.ended.pop(peer_id, None)
        self.ignored.pop(peer_id, None)
        return self.peers.get(peer_id)

    def ready(self) -> Iterator[Peer]:
        """Workers whose session is READY: they take updates."""
        return (peer for peer in self.workers.values() if peer.session.state is State.READY)
