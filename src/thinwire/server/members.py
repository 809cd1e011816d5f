"""Who is connected, as which worker, and who is away. No I/O, no clock."""

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
    """One connection: its session since when, and what it said before it joined."""

    id: PeerId
    session: Session
    since: float
    described: bytes = b""
    """The frame of its Describe. It takes ten times as much memory when it is decoded."""
    wanted: int | None = None
    """The updates after this version, at the end of the turn."""

    @property
    def description(self) -> Describe | None:
        message = decode(unpack(memoryview(self.described))) if self.described else None
        return message if isinstance(message, Describe) else None


@dataclass(slots=True)
class Members:
    """All connections. Times are whatever clock the owner has."""

    run: int
    epoch: int
    peers: dict[PeerId, Peer] = field(default_factory=dict)
    workers: dict[int, Peer] = field(default_factory=dict)
    away_since: dict[int, float] = field(default_factory=dict)
    """Workers that are expected back."""
    ended: dict[PeerId, float] = field(default_factory=dict)
    """Connections that nothing is heard of any more, though the other side may not know yet."""
    ignored: Counter[PeerId] = field(default_factory=Counter)
    """Frames that they went on to send."""

    def find(self, peer_id: PeerId, *, now: float) -> Peer | None:
        """Who this is; a new session if it was never heard of, None if it has ended."""
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
        """Hear no more of this connection. Whether that was a worker's, who is away from now on."""
        self.peers.pop(peer.id, None)
        self.ended[peer.id] = now
        if self.workers.get(peer.session.worker) is not peer:
            return False
        del self.workers[peer.session.worker]
        self.away_since[peer.session.worker] = now
        return True

    def strangers(self, *, before: float, most: int) -> list[Peer]:
        """Who has spoken before that time and not joined, and the first of more than ``most``."""
        found = [p for p in self.peers.values() if self.workers.get(p.session.worker) is not p]
        return [p for i, p in enumerate(found) if p.since < before or i < len(found) - most]

    def overdue(self, *, before: float, most: int, most_frames: int) -> list[PeerId]:
        """Connections that ended before that time, the first of more than ``most``, and those that
        have sent more than ``most_frames`` since.

        They are forgotten here.
        """
        many = len(self.ended) - most
        found = [
            one
            for i, (one, since) in enumerate(self.ended.items())
            if since < before or i < many or self.ignored[one] > most_frames
        ]
        for peer_id in found:
            del self.ended[peer_id]
            self.ignored.pop(peer_id, None)
        return found

    def gone(self, peer_id: PeerId) -> Peer | None:
        """The connection does not exist any more; who it was, unless it had ended before."""
        self.ended.pop(peer_id, None)
        self.ignored.pop(peer_id, None)
        return self.peers.get(peer_id)

    def ready(self) -> Iterator[Peer]:
        """Workers that can be spoken to."""
        return (peer for peer in self.workers.values() if peer.session.state is State.READY)
