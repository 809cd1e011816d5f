"""Which connection is which peer: from descriptors and routing ids to peers, and out again.

Bookkeeping alone: it sends nothing and waits for nothing. What happened is left in ``gone``.
"""

from __future__ import annotations

import logging
from collections import deque

from thinwire.transport.base import PeerGone, PeerId
from thinwire.transport.limits import TransportLimits
from thinwire.transport.zeromq.links import Link

_log = logging.getLogger(__name__)


class Roster:
    """All connections of a listener.

    A message names its connection by a descriptor, which the system gives to the next connection
    when this one ends. Events come in order, so the latest holder is the one that is meant, unless
    two peers claim it: then the first had ended.
    """

    def __init__(self, limits: TransportLimits) -> None:
        self.gone: deque[PeerGone] = deque()
        self._limits = limits
        self._by_fd: dict[int, Link] = {}
        self._by_route: dict[bytes, Link] = {}
        self._by_peer: dict[PeerId, Link] = {}
        self._ending: list[Link] = []
        self._superseded: set[bytes] = set()
        self._made = 0

    def accepted(self, link: Link) -> None:
        self.disconnected(link.fd)
        waiting = [other for other in self._by_fd.values() if other.peer is None]
        if len(waiting) >= self._limits.max_peers:
            waiting[0].cut()
            self.disconnected(waiting[0].fd)
        self._by_fd[link.fd] = link

    def disconnected(self, fd: int) -> None:
        """Its last messages may still be unread: it is gone when they had their turn."""
        link = self._by_fd.pop(fd, None)
        if link is not None:
            links = len(self._by_fd) + len(self._ending) + 1
            link.turns_left = links * (self._limits.max_unread_messages + 2)
            self._ending.append(link)

    def of_peer(self, peer: PeerId) -> Link | None:
        link = self._by_peer.get(peer)
        return None if link is None or link.dropped else link

    def of_route(self, routing_id: bytes) -> Link | None:
        return self._by_route.get(routing_id)

    def bind(self, routing_id: bytes, fd: int) -> Link | None:
        """The connection of a first message, which makes it a peer. None if it cannot be one."""
        if routing_id in self._superseded:
            return None
        ended = (link for link in self._ending if link.fd == fd and link.peer is None)
        link = self._by_fd.get(fd) or next(ended, None)
        if link is None:
            return None
        if link.peer is not None:
            self._supersede(link)
        elif len(self._by_peer) >= self._limits.max_peers:
            _log.warning("a connection was dropped: there are %d peers", len(self._by_peer))
            link.cut()
            return None
        self._made += 1
        link.peer, link.routing_id = PeerId(self._made), routing_id
        self._by_peer[link.peer] = self._by_route[routing_id] = link
        return link

    def _supersede(self, link: Link) -> None:
        """The peer so far was another connection, ended before this one got its descriptor."""
        self._report(link, "the connection ended")
        if link.peer is not None:
            self._by_peer.pop(link.peer)
        self._by_route.pop(link.routing_id)
        self._superseded.add(link.routing_id)

    def expel(self, link: Link, reason: str) -> None:
        """End a connection because of what its peer did."""
        if not link.dropped:
            _log.warning("peer %s was dropped: %s", link.peer, reason)
            self._report(link, reason)
            self.drop(link)

    def drop(self, link: Link) -> None:
        link.dropped = True
        link.cut()

    def forget(self, peer: PeerId) -> None:
        """Do not report what happened to this peer."""
        self.gone = deque(gone for gone in self.gone if gone.peer != peer)

    def turn(self, *, dry: bool) -> None:
        """One read was done; ``dry``: and there is nothing left to read."""
        for link in self._ending[:]:
            link.turns_left -= 1
            if dry or link.turns_left <= 0:
                self._ending.remove(link)
                self._finish(link)
        if dry:
            self._superseded.clear()

    def check(self, now: float) -> None:
        """Look for connections that take place or memory and say nothing. Only when dry."""
        for link in list(self._by_fd.values()):
            if link.peer is None and now - link.since > self._limits.first_frame_seconds:
                link.cut()
                self.disconnected(link.fd)
            elif link.too_much_unfinished():
                self.expel(link, "it sends a message without end")

    def close(self) -> None:
        for link in [*self._by_fd.values(), *self._ending]:
            link.close()

    def _finish(self, link: Link) -> None:
        if not link.dropped:
            self._report(link, "the connection ended")
        if link.peer is not None:
            self._by_peer.pop(link.peer, None)
            self._by_route.pop(link.routing_id, None)
        link.close()

    def _report(self, link: Link, reason: str) -> None:
        if link.peer is not None and not link.dropped:
            self.gone.append(PeerGone(link.peer, reason))
