"""``Connections``: those that a listener has accepted, on one selector; who is read or must go."""

from __future__ import annotations

import errno
import logging
import resource
import selectors
import socket
import sys

from thinwire.clock import AwakeClock
from thinwire.errors import RemoteProtocolError
from thinwire.keys.tls import ServerTls
from thinwire.rate_limited_log import RateLimitedLog
from thinwire.transport.base import PeerGone, PeerId, Received
from thinwire.transport.peer_limits import TransportLimits
from thinwire.transport.tcp.inbox import Inbox
from thinwire.transport.tcp.peer import Peer, tune
from thinwire.transport.tcp.stream import SCRATCH_NBYTES
from thinwire.wire.stream import ENDED, Buffers

_logger = logging.getLogger(__name__)

CHECK_SECONDS = 0.05
_READS = 16  # of one peer, before the next one's turn
_ACCEPTS = 32
_KEPT_FREE = 8  # descriptors, for the log
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Connections:
    """But for ``wait``, its caller holds a lock. No method waits."""

    def __init__(self, own: socket.socket, tls: ServerTls | None, limits: TransportLimits) -> None:
        self._socket, self._tls, self._limits = own, tls, limits
        self._by_fd: dict[int, Peer] = {}  # the oldest first
        self.peers: dict[PeerId, Peer] = {}
        """Those that have sent a frame."""
        self._again: set[Peer] = set()  # with more to read, of which no selector may know
        self._paused: set[Peer] = set()  # not read until the owner has caught up
        self.inbox, self._made = Inbox(limits), 0
        self._scratch = memoryview(bytearray(SCRATCH_NBYTES))
        self._clock = AwakeClock()
        self._checked = self._accepts_at = 0.0
        self._refusals = RateLimitedLog(_logger)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_fd = sys.maxsize if limit == resource.RLIM_INFINITY else limit - _KEPT_FREE
        self._room = sys.maxsize  # for connections, that leaves descriptors for other things
        own.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(own, _READ)

    def wait(self, seconds: float) -> dict[int, int]:
        """Until something can be done, which ``serve`` then does."""
        ready = self._selector.select(0 if self._again else seconds)
        return {key.fd: mask for key, mask in ready}

    def serve(self, masks: dict[int, int]) -> None:
        self._clock.tick()
        if masks.pop(self._socket.fileno(), 0):
            self._accept()
        for peer in self._again:
            masks[peer.fd] = masks.get(peer.fd, 0) | _READ
        self._again.clear()
        for fd, mask in masks.items():
            if fd in self._by_fd:  # it may have made place for another
                self._serve(self._by_fd[fd], mask)
        if self._clock.now - self._checked >= CHECK_SECONDS:
            self._check()

    def take(self) -> Received | PeerGone:
        """The next event of the inbox; it may make room to read more."""
        event = self.inbox.take(self.peers)
        for peer in [peer for peer in self._paused if self.inbox.has_room(peer)]:
            self._paused.discard(peer)
            peer.heard = self._clock.now
            self._again.add(peer)
        return event

    def send(self, peer: Peer, frame: Buffers, nbytes: int) -> None:
        try:
            peer.queue(frame, nbytes)
            self._watch(peer)
        except RemoteProtocolError as error:
            self._expel(peer, str(error))
        except OSError as error:
            self._ended(peer, error)

    def drop(self, id_: PeerId, reason: str) -> None:
        """End a connection, and forget its events."""
        if (peer := self.peers.get(id_)) is not None:
            self.inbox.forget(id_, peer)
            (self._expel if reason else self._end)(peer, reason)
        self.inbox.forget(id_, None)

    def close(self) -> None:
        for peer in list(self._by_fd.values()):
            self._end(peer, ENDED)
        self._selector.close()
        self._socket.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                own, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    continue  # it has ended already
                if not self._make_place("this process can open no more files"):
                    self._selector.unregister(self._socket)
                    self._accepts_at = self._clock.now + CHECK_SECONDS
                    return
                continue
            tune(own)
            peer = Peer(own, self._limits, self._tls, now=self._clock.now)
            self._by_fd[peer.fd] = peer
            self._serve(peer, _READ)  # who says hello at once keeps its place for longer
            if peer.fd >= self._most_fd:  # a descriptor is the lowest that is free
                self._room = len(self._by_fd) - (peer.fd + 1 - self._most_fd)
            reason = "this process can hardly open more files"
            while len(self._by_fd) > self._room and self._make_place(reason):
                pass
            if len(self._by_fd) - len(self.peers) > self._limits.max_silent:
                self._make_place(f"{self._limits.max_silent} connections have sent no frame")

    def _make_place(self, reason: str) -> bool:
        """Expel the oldest of the connections without a frame that have said the least; returns
        whether there was one."""
        silent = [peer for peer in self._by_fd.values() if peer.id is None]
        if silent:
            peer = min(silent, key=lambda peer: peer.progress)
            self._expel(peer, f"{reason}, and this is the oldest without a frame")
        return bool(silent)

    def _serve(self, peer: Peer, mask: int) -> None:
        try:
            if mask & _READ:
                self._read(peer)
            peer.flush()
            self._watch(peer)
        except RemoteProtocolError as error:
            self._expel(peer, str(error))
        except OSError as error:
            self._ended(peer, error)

    def _read(self, peer: Peer) -> None:
        for _ in range(_READS):
            if not self.inbox.has_room(peer):
                return
            try:
                frames, more = peer.read(self._scratch)
            except BlockingIOError:
                return
            peer.heard = self._clock.now
            for frame in frames:
                self._heard(peer, frame)
            if not peer.admitted:
                self._bound_unadmitted()
            if not more:
                return
        self._again.add(peer)

    def _heard(self, peer: Peer, frame: memoryview | None) -> None:
        peer.count(frame, now=self._clock.now)
        if frame is None:
            peer.out.add_heartbeat()
            return
        if peer.id is None:
            if len(self.peers) >= self._limits.max_peers:
                raise RemoteProtocolError(f"there are {len(self.peers)} peers already")
            self._made += 1
            peer.id = PeerId(self._made)
            self.peers[peer.id] = peer
        self.inbox.add(Received(peer.id, frame), peer)

    def _watch(self, peer: Peer) -> None:
        """Let the selector wait for what this peer needs now."""
        if self._by_fd.get(peer.fd) is not peer:
            return
        if not self.inbox.has_room(peer):
            self._paused.add(peer)
        events = (0 if peer in self._paused else _READ) | (0 if peer.is_flushed else _WRITE)
        if events == peer.events:
            return
        if peer.events:
            self._selector.unregister(peer.fd)
        if events:
            self._selector.register(peer.fd, events)
        peer.events = events

    def _bound_unadmitted(self) -> None:
        """Limit what peers hold before they are admitted, all together."""
        most = self._limits.max_unadmitted_nbytes
        peers = [peer for peer in self._by_fd.values() if not peer.admitted and peer.held_nbytes]
        while sum(peer.held_nbytes for peer in peers) > most:
            peers.sort(key=lambda peer: peer.held_nbytes)
            peer = peers.pop()
            self.inbox.forget(peer.id, peer)
            text = f"unadmitted peers sent more than {most} bytes, and this is one with the most"
            self._expel(peer, text)

    def _check(self) -> None:
        """Periodically: end what is silent for too long, or not allowed any more."""
        now = self._checked = self._clock.now
        self._refusals.catch_up(now=now)
        if self._accepts_at and now >= self._accepts_at:
            self._accepts_at = 0.0
            self._selector.register(self._socket, _READ)
        is_changed = self._tls is not None and self._tls.read_again(now=now)
        first, silence = self._limits.first_frame_seconds, self._limits.silence_seconds
        for peer in list(self._by_fd.values()):
            if peer.id is None and now - peer.since > first:
                self._expel(peer, f"it sent no frame for {first:g} s")
            elif is_changed and peer.is_revoked():
                self._expel(peer, "its key is not on the list any more")
            elif peer in self._paused:
                self._reassure(peer)
            elif now - peer.heard > silence:
                self._expel(peer, f"nothing came from it for {silence:g} s")

    def _reassure(self, peer: Peer) -> None:
        """Send heartbeats to one whose own are not read: it waits, and must not give up."""
        if self._clock.now - peer.heard >= self._limits.heartbeat_seconds:
            peer.heard = self._clock.now
            peer.out.add_heartbeat()
            self._serve(peer, 0)

    def _expel(self, peer: Peer, reason: str) -> None:
        """End a connection because of what its peer did."""
        who = "a connection" if peer.id is None else f"peer {peer.id}"
        self._refusals.note(f"{who} was dropped: {reason}", now=self._clock.now)
        self._end(peer, reason)

    def _ended(self, peer: Peer, error: OSError) -> None:
        is_here = self._by_fd.get(peer.fd) is peer
        if is_here and peer.id is None and str(error) != ENDED:
            reason = getattr(error, "reason", None) or error.strerror or str(error)
            self._refusals.note(f"a connection was refused: {reason}", now=self._clock.now)
        self._end(peer, ENDED)

    def _end(self, peer: Peer, reason: str) -> None:
        if self._by_fd.get(peer.fd) is not peer:
            return
        del self._by_fd[peer.fd]
        self._again.discard(peer)
        self._paused.discard(peer)
        if peer.events:
            self._selector.unregister(peer.fd)
        peer.close()
        if peer.id is not None:
            del self.peers[peer.id]
            self.inbox.add(PeerGone(peer.id, reason), peer)
