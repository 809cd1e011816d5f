"""``listen``: a server's side over TCP. One selector for all its workers, no thread for each."""

from __future__ import annotations

import errno
import logging
import resource
import selectors
import socket
import sys
import threading
import time
from contextlib import suppress

from thinwire.address import check_address, check_secured, split_address
from thinwire.clock import AwakeClock, Deadline
from thinwire.errors import RemoteProtocolError, TransportClosed, TransportError
from thinwire.keys.settings import ServerKeys
from thinwire.keys.tls import ServerTls
from thinwire.rate_limited_log import RateLimitedLog
from thinwire.transport.base import PeerGone, PeerId, Received
from thinwire.transport.peer_limits import DEFAULT_LIMITS, TransportLimits
from thinwire.transport.tcp.inbox import Inbox
from thinwire.transport.tcp.peer import Peer, tune
from thinwire.transport.tcp.stream import ENDED, SCRATCH_NBYTES
from thinwire.wire.stream import Buffers, nbytes_of

_logger = logging.getLogger(__name__)

_MOST_WAIT_SECONDS = 0.25
_CHECK_SECONDS = 0.05
_LIST_SECONDS = 1.0
_AWAY_SECONDS = 0.02  # until another thread serves the connections of a busy owner
_READS = 16  # of one peer, before the next one's turn
_ACCEPTS = 32
_KEPT_FREE = 8  # descriptors, for the log
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


def listen(
    address: str,
    *,
    keys: ServerKeys | None = None,
    insecure: bool = False,
    limits: TransportLimits = DEFAULT_LIMITS,
) -> TcpListener:
    """Listen at ``tcp://HOST:PORT``; port 0 is any free one, see ``address`` of the result.

    ``insecure`` allows an address that others than this machine reach without keys. Raises
    TransportError if the address is taken or not of this machine.
    """
    check_address(address, least_port=0)
    check_secured(address, has_keys=keys is not None, insecure=insecure)
    tls = None if keys is None else ServerTls(keys)
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        own = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TransportError(f"cannot listen at {address}: {reason}") from error
    return TcpListener(own, f"{address.rpartition(':')[0]}:{own.getsockname()[1]}", tls, limits)


class TcpListener:
    """Made by ``listen``. A thread of its own serves the connections while none is in ``receive``:
    then a busy owner still hears its workers, answers heartbeats, and gets rid of what it sent.
    """

    def __init__(
        self, own: socket.socket, address: str, tls: ServerTls | None, limits: TransportLimits
    ) -> None:
        self.address = address
        self._socket, self._tls, self._limits = own, tls, limits
        self._polling = threading.Lock()  # of the thread that serves the connections
        self._lock = threading.Lock()  # of all that follows
        self._by_fd: dict[int, Peer] = {}  # the oldest first
        self._peers: dict[PeerId, Peer] = {}
        self._again: set[Peer] = set()  # with more to read, of which no selector may know
        self._paused: set[Peer] = set()  # not read until the owner has caught up
        self._inbox, self._made = Inbox(limits), 0
        self._scratch = memoryview(bytearray(SCRATCH_NBYTES))
        self._clock = AwakeClock()
        self._checked = self._listed = self._accepts_at = 0.0
        self._refusals = RateLimitedLog(_logger)
        self._closed = self._attended = False
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_fd = sys.maxsize if limit == resource.RLIM_INFINITY else limit - _KEPT_FREE
        self._room = sys.maxsize  # for connections, that leaves descriptors for other things
        own.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(own, _READ)
        self._thread = threading.Thread(target=self._stand_in, name="thinwire port", daemon=True)
        self._thread.start()

    def receive(self, *, deadline_seconds: float) -> Received | PeerGone | None:
        deadline, looked = Deadline(deadline_seconds), False
        while True:
            with self._lock:
                self._check_open()
                if self._inbox:
                    return self._take()
            if looked and deadline.passed():
                return None
            self._attended = looked = True
            self._poll(min(_MOST_WAIT_SECONDS, deadline.left_seconds()))
            self._attended = False

    def _take(self) -> Received | PeerGone:
        event = self._inbox.take(self._peers)
        for peer in [peer for peer in self._paused if self._inbox.has_room(peer)]:
            self._paused.discard(peer)
            peer.heard = self._clock.now
            self._again.add(peer)
        return event

    def _stand_in(self) -> None:
        while not self._closed:
            time.sleep(_AWAY_SECONDS)
            if not self._attended:
                self._poll(0.0)

    def _poll(self, seconds: float) -> None:
        """Wait until something can be done, and do it."""
        with self._polling:
            ready = () if self._closed else self._selector.select(0 if self._again else seconds)
            with self._lock:
                if self._closed:
                    return
                self._clock.tick()
                masks = {key.fd: mask for key, mask in ready}
                if masks.pop(self._socket.fileno(), 0):
                    self._accept()
                for peer in self._again:
                    masks[peer.fd] = masks.get(peer.fd, 0) | _READ
                self._again.clear()
                for fd, mask in masks.items():
                    if fd in self._by_fd:  # it may have made place for another
                        self._serve(self._by_fd[fd], mask)
                if self._clock.now - self._checked >= _CHECK_SECONDS:
                    self._check()

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
                    self._accepts_at = self._clock.now + _CHECK_SECONDS
                    return
                continue
            tune(own)
            peer = Peer(own, self._limits, self._tls, now=self._clock.now)
            self._by_fd[peer.fd] = peer
            self._serve(peer, _READ)  # who says hello at once keeps its place for longer
            if peer.fd >= self._most_fd:  # a descriptor is the lowest that is free
                self._room = len(self._by_fd) - (peer.fd + 1 - self._most_fd)
            while len(self._by_fd) > self._room:
                if not self._make_place("this process can hardly open more files"):
                    break
            if len(self._by_fd) - len(self._peers) > self._limits.max_silent:
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
            if not self._inbox.has_room(peer):
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
        why = peer.excess(frame, now=self._clock.now)
        if frame is None:
            if not peer.out:
                peer.out.add_heartbeat()
        elif peer.id is None and len(self._peers) >= self._limits.max_peers:
            why = f"there are {len(self._peers)} peers already"
        else:
            self._keep(peer, frame)
        if why is not None:
            raise RemoteProtocolError(why)

    def _keep(self, peer: Peer, frame: memoryview) -> None:
        if peer.id is None:
            self._made += 1
            peer.id = PeerId(self._made)
            self._peers[peer.id] = peer
        self._inbox.add(Received(peer.id, frame), peer)

    def _watch(self, peer: Peer) -> None:
        """Let the selector wait for what this peer needs now."""
        if self._by_fd.get(peer.fd) is not peer:
            return
        if not self._inbox.has_room(peer):
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
            self._inbox.forget(peer.id, peer)
            text = f"unadmitted peers sent more than {most} bytes, and this is one with the most"
            self._expel(peer, text)

    def _check(self) -> None:
        """Periodically: end what is silent for too long, or not allowed any more."""
        now = self._checked = self._clock.now
        self._refusals.catch_up(now=now)
        if self._accepts_at and now >= self._accepts_at:
            self._accepts_at = 0.0
            self._selector.register(self._socket, _READ)
        is_changed = False
        if self._tls is not None and now - self._listed >= _LIST_SECONDS:
            self._listed, is_changed = now, self._tls.read_again()
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
            if not peer.out:
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
            del self._peers[peer.id]
            self._inbox.add(PeerGone(peer.id, reason), peer)

    def send(self, peer: PeerId, frame: Buffers) -> None:
        nbytes = nbytes_of(frame)
        self._limits.check_message(nbytes)
        with self._lock:
            self._check_open()
            to = self._peers.get(peer)
            if to is None:
                return
            try:
                why = to.queue(frame, nbytes)
            except OSError as error:
                self._ended(to, error)
                return
            if why is not None:
                self._expel(to, why)
            self._watch(to)

    def admit(self, peer: PeerId) -> None:
        with self._lock:
            if peer in self._peers:
                self._peers[peer].admit()

    def allows(self, peer: PeerId, rank: int) -> bool:
        with self._lock:
            return peer in self._peers and self._peers[peer].grant.allows(rank)

    def drop(self, peer: PeerId, reason: str = "") -> None:
        with self._lock:
            self._check_open()
            found = self._peers.get(peer)
            if found is not None:
                self._inbox.forget(peer, found)
                end = self._expel if reason else self._end
                end(found, reason)
            self._inbox.forget(peer, None)

    def close(self) -> None:
        deadline = Deadline(self._limits.linger_seconds)
        while not (deadline.passed() or all(p.is_flushed for p in list(self._peers.values()))):
            self._poll(min(_CHECK_SECONDS, deadline.left_seconds()))
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for peer in list(self._by_fd.values()):
                self._end(peer, ENDED)
        self._thread.join()
        with self._polling, suppress(OSError):
            self._selector.close()
            self._socket.close()

    def _check_open(self) -> None:
        if self._closed:
            raise TransportClosed(f"the listener at {self.address} is closed")
