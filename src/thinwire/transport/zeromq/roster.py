"""``Roster``: which connection is which peer, by descriptor and routing id.

Bookkeeping alone: it sends nothing and waits for nothing. What happened is left in ``gone``.
"""

from __future__ import annotations

import logging
from collections import deque

from thinwire.transport.base import PeerGone, PeerId
from thinwire.transport.peer_limits import TransportLimits
from thinwire.transport.rate_limited_log import RateLimitedLog
from thinwire.transport.zeromq.links import Link

_log = logging.getLogger(__name__)


class Roster:
    """All connections of a listener.

    A message names its connection by a descriptor, which the system gives to the next connection
    when this one ends. Events come in order, so the latest holder is the one that is meant, unless
    two peers claim it: then the first had ended. A routing id alone does not do: a peer may choose
    its own, and take one that is in use.
    """

    def __init__(self, limits: TransportLimits) -> None:
        self.gone: deque[PeerGone] = deque()
        self.refusals = RateLimitedLog(_log)
        self.silenced: set[bytes] = set()  # routing ids of dropped peers
        self._limits = limits
        self._by_fd: dict[int, Link] = {}
        self._by_route: dict[tuple[bytes, int], Link] = {}
        self._by_peer: dict[PeerId, Link] = {}
        self._ending: list[Link] = []
        self._superseded: set[tuple[bytes, int]] = set()
        self._explained = 0  # refused connections, already logged, that have not ended yet
        self._made = 0

    def accepted(self, link: Link) -> None:
        self.disconnected(link.fd)
        silent = [other for other in self._by_fd.values() if other.peer is None]
        if len(silent) >= self._limits.max_silent:
            text = f"{len(silent)} connections have sent no frame, and this is the oldest"
            self.expel(silent[0], text, now=link.since)
            self.disconnected(silent[0].fd)
        self._by_fd[link.fd] = link

    def refused(self, why: str, *, now: float) -> None:
        """The handshake of some connection failed."""
        self.refusals.note(f"a connection was refused: {why}", now=now)
        self._explained += 1

    def disconnected(self, fd: int) -> None:
        """Its last messages may still be unread: it is reported gone after they were read."""
        link = self._by_fd.pop(fd, None)
        if link is not None:
            self._ending.append(link)
            self._await_turns(link)

    def _await_turns(self, link: Link) -> None:
        # Connections are read round-robin: one that gives nothing in a whole turn has nothing left.
        link.turns_left = 2 * (len(self._by_fd) + len(self._ending)) + 2

    def of_peer(self, peer: PeerId) -> Link | None:
        link = self._by_peer.get(peer)
        return None if link is None or link.dropped else link

    def of_route(self, routing_id: bytes, fd: int) -> Link | None:
        """The connection of a message, which was read just now. None if it is the first."""
        link = self._by_route.get((routing_id, fd))
        if link is not None and link.turns_left:
            self._await_turns(link)
        return link

    def bind(self, routing_id: bytes, fd: int, *, now: float) -> Link | None:
        """The connection of a first message, which makes it a peer. None if it cannot be one."""
        if (routing_id, fd) in self._superseded:
            return None
        ended = (link for link in self._ending if link.fd == fd and link.peer is None)
        link = self._by_fd.get(fd) or next(ended, None)
        if link is None or (link.peer is None and link.dropped):
            return None
        if link.peer is not None:
            self._supersede(link)
        elif len(self._by_peer) >= self._limits.max_peers:
            self.expel(link, f"there are {len(self._by_peer)} peers already", now=now)
            return None
        self._made += 1
        link.begin(PeerId(self._made), routing_id)
        self._by_peer[PeerId(self._made)] = self._by_route[routing_id, fd] = link
        return link

    def _supersede(self, link: Link) -> None:
        """The peer so far was another connection, ended before this one got its descriptor."""
        self._report(link, "the connection ended")
        self._forget(link)
        self._superseded.add((link.routing_id, link.fd))

    def expel(self, link: Link, reason: str, *, now: float) -> None:
        """End a connection because of what its peer did."""
        if not link.dropped:
            who = "a connection" if link.peer is None else f"peer {link.peer}"
            self.refusals.note(f"{who} was dropped: {reason}", now=now)
            self._report(link, reason)
            self._silence(link)
            link.reset()

    def admit(self, peer: PeerId) -> None:
        """It may send as much as any peer."""
        link = self._by_peer.get(peer)
        if link is not None:
            link.admitted = True

    def drop(self, link: Link, reason: str, *, now: float) -> None:
        """End a connection because the owner wants that."""
        if reason:
            self.refusals.note(f"peer {link.peer} was dropped: {reason}", now=now)
        self._silence(link)
        link.cut()

    def _silence(self, link: Link) -> None:
        link.dropped = True
        if link.peer is not None:
            self.silenced.add(link.routing_id)

    def ignore(self, peer: PeerId) -> None:
        """Do not report what happened to this peer."""
        self.gone = deque(gone for gone in self.gone if gone.peer != peer)

    def turn(self, *, dry: bool, now: float) -> None:
        """One read was done; ``dry``: and there is nothing left to read."""
        for link in self._ending[:]:
            link.turns_left -= 1
            # One that was dropped is kept as long as there may be messages to throw away.
            if dry or (link.turns_left <= 0 and not link.dropped):
                self._ending.remove(link)
                self._finish(link, now)
        if dry:
            self._superseded.clear()

    def look(self, seconds: float) -> None:
        """Note what has come on each connection; see ``Link.look``."""
        for link in self._by_fd.values():
            link.look(seconds)

    def check(self, now: float, *, dry: bool) -> None:
        """Drop peers that are silent or send too much. ``dry``: nothing to read since look."""
        self.refusals.catch_up(now=now)
        first, silence = self._limits.first_frame_seconds, self._limits.silence_seconds
        for link in list(self._by_fd.values()):
            if link.peer is None and now - link.since > first:
                self.expel(link, f"it sent no frame for {first:g} s", now=now)
                self.disconnected(link.fd)
            elif link.quiet_seconds > silence:
                self.expel(link, f"nothing came from it for {silence:g} s", now=now)
            elif link.holds_too_much(dry=dry):
                self.expel(
                    link, "it sends a message without end, or faster than it is read", now=now
                )
        self._check_unadmitted(now)

    def _check_unadmitted(self, now: float) -> None:
        """Limit what peers send before they are admitted, each and all together."""
        most = self._limits.max_unadmitted_nbytes
        links = [link for link in self._by_fd.values() if not (link.admitted or link.dropped)]
        links.sort(key=lambda link: link.unread_nbytes)
        unread = sum(link.unread_nbytes for link in links)
        # Far below the bound at once: meanwhile the others send on.
        enough = most if unread <= most else most // 8
        while unread > enough:
            unread -= links[-1].unread_nbytes
            text = f"unadmitted peers sent more than {most} bytes, and this is one with the most"
            self.expel(links.pop(), text, now=now)
        for link in links:
            why = link.excess_before_admission()
            if why is not None:
                self.expel(link, why, now=now)

    def has_unadmitted(self) -> bool:
        return not all(link.admitted for link in self._by_fd.values())

    def has_waste(self) -> bool:
        """Whether there may be messages to throw away, of peers that have ended or must."""
        ended = any(link.dropped or not link.admitted for link in self._ending)
        return ended or any(link.dropped for link in self._by_fd.values())

    def close(self) -> None:
        for link in [*self._by_fd.values(), *self._ending]:
            link.close()

    def _finish(self, link: Link, now: float) -> None:
        if link.peer is None and self._explained:
            self._explained -= 1
        elif link.peer is None and not link.dropped:
            text = "it ended before its first frame, or sent what is not ZMTP"
            self.refusals.note(f"a connection was refused: {text}", now=now)
        self._report(link, "the connection ended")
        self._forget(link)
        link.close()

    def _forget(self, link: Link) -> None:
        if link.peer is not None:
            self._by_peer.pop(link.peer, None)
            self._by_route.pop((link.routing_id, link.fd), None)
            self.silenced.discard(link.routing_id)

    def _report(self, link: Link, reason: str) -> None:
        if link.peer is not None and not link.dropped:
            self.gone.append(PeerGone(link.peer, reason))
