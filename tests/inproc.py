"""``InprocListener``: a transport between threads of one process, with the same contract.

For tests and demonstrations. One lock guards all state, and is released while a thread waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from thinwire.clock import Deadline
from thinwire.errors import RemoteProtocolError, TransportClosed, TransportTimeout
from thinwire.rate_limited_log import RateLimitedLog
from thinwire.transport.base import PeerGone, PeerId, Received
from thinwire.transport.peer_limits import DEFAULT_LIMITS, Allowance, TransportLimits
from thinwire.wire.stream import Buffers

_log = logging.getLogger(__name__)


def joined(frame: Buffers) -> bytes:
    return frame if isinstance(frame, bytes) else b"".join(frame)


class InprocListener:
    """A server's side, to which workers ``connect``."""

    def __init__(self, name: str = "inproc", *, limits: TransportLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.changed = threading.Condition()
        self._name = name
        self._peers: dict[PeerId, InprocConnection] = {}  # in the order in which they are served
        self._gone: deque[PeerGone] = deque()
        self._refusals = RateLimitedLog(_log)
        self._made = 0
        self._closed = False

    @property
    def address(self) -> str:
        return f"inproc://{self._name}"

    def connect(self) -> InprocConnection:
        """A new worker's side. Raises TransportClosed if the server is closed or full."""
        with self.changed:
            if self._closed or len(self._peers) >= self.limits.max_peers:
                state = "is closed" if self._closed else f"has {len(self._peers)} peers, its limit"
                raise TransportClosed(f"the server at {self.address} {state}")
            self._made += 1
            connection = InprocConnection(self)
            self._peers[PeerId(self._made)] = connection
            return connection

    def receive(self, *, deadline_seconds: float) -> Received | PeerGone | None:
        deadline = Deadline(deadline_seconds)
        with self.changed:
            while True:
                self._check_open()
                event = self._next(time.monotonic())
                if event is not None or deadline.passed():
                    return event
                self.changed.wait(deadline.left_seconds())

    def _next(self, now: float) -> Received | PeerGone | None:
        for peer, connection in list(self._peers.items()):
            if connection.pushes:
                return self._take(peer, connection, now)
            if connection.ended:
                self._end(peer, "it closed the connection")
        return self._gone.popleft() if self._gone else None

    def _take(self, peer: PeerId, connection: InprocConnection, now: float) -> Received | PeerGone:
        frame = connection.pushes.popleft()
        connection.spoke = True
        self.changed.notify_all()
        try:
            connection.allowance.take(len(frame), now=now)
        except RemoteProtocolError as error:
            self._refusals.note(f"peer {peer} was dropped: {error}", now=now)
            self._remove(peer)
            return PeerGone(peer, str(error))
        self._peers[peer] = self._peers.pop(peer)  # to the end: round-robin
        return Received(peer, memoryview(frame))

    def send(self, peer: PeerId, frame: Buffers) -> None:
        data = joined(frame)
        self.limits.check_message(len(data))
        with self.changed:
            self._check_open()
            connection = self._peers.get(peer)
            if connection is None or connection.ended:
                return
            waiting = sum(map(len, connection.updates)) + len(data)
            messages = len(connection.updates) + 1
            most = self.limits
            if waiting > most.max_unsent_nbytes or messages > most.max_unsent_messages:
                connection.updates.clear()
                why = f"it does not read: {messages} messages, {waiting} bytes wait"
                self._refusals.note(f"peer {peer} was dropped: {why}", now=time.monotonic())
                self._end(peer, why)
                return
            connection.updates.append(data)
            self.changed.notify_all()

    def admit(self, peer: PeerId) -> None:
        """Nothing to lift: peers are in the same process."""

    def allows(self, peer: PeerId, rank: int) -> bool:
        return True

    def drop(self, peer: PeerId, reason: str = "") -> None:
        with self.changed:
            if peer in self._peers and reason:
                self._refusals.note(f"peer {peer} was dropped: {reason}", now=time.monotonic())
            if peer in self._peers:
                self._remove(peer).updates.clear()
            self._gone = deque(gone for gone in self._gone if gone.peer != peer)

    def close(self) -> None:
        with self.changed:
            self._closed = True
            for peer in list(self._peers):
                self._remove(peer)
            self.changed.notify_all()

    def _end(self, peer: PeerId, reason: str) -> None:
        if self._remove(peer).spoke:
            self._gone.append(PeerGone(peer, reason))

    def _remove(self, peer: PeerId) -> InprocConnection:
        connection = self._peers.pop(peer)
        connection.ended = True
        self.changed.notify_all()
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise TransportClosed(f"the listener at {self.address} is closed")


class InprocConnection:
    """A worker's side; the listener makes it, and uses its queues."""

    def __init__(self, listener: InprocListener) -> None:
        self._listener = listener
        self._changed = listener.changed
        self._limits = listener.limits
        self.pushes: deque[bytes] = deque()
        self.updates: deque[bytes] = deque()
        self.allowance = Allowance(listener.limits, now=time.monotonic())
        self.spoke = False
        self.ended = False

    @property
    def address(self) -> str:
        return self._listener.address

    def send(self, frame: Buffers, *, deadline_seconds: float) -> None:
        deadline = Deadline(deadline_seconds)
        data = joined(frame)
        self._limits.check_message(len(data))
        with self._changed:
            while not (self.ended or self._has_room(len(data))):
                self._wait(deadline, f"sending {len(data)} bytes: not taken by")
            if self.ended:
                raise TransportClosed(f"the connection to {self.address} is closed")
            self.pushes.append(data)
            self._changed.notify_all()

    def _has_room(self, nbytes: int) -> bool:
        """Backpressure: a worker waits at half of what may be unread."""
        unread, most = sum(map(len, self.pushes)), self._limits
        fits = unread + nbytes <= most.max_unread_nbytes // 2
        return fits and len(self.pushes) < max(1, most.max_unread_messages // 2)

    def receive(self, *, deadline_seconds: float, what: str = "a frame") -> memoryview:
        deadline = Deadline(deadline_seconds)
        with self._changed:
            while not self.updates:
                if self.ended:
                    raise TransportClosed(f"{what}: the connection to {self.address} is closed")
                self._wait(deadline, f"{what}: nothing from")
            return memoryview(self.updates.popleft())

    def _wait(self, deadline: Deadline, what: str) -> None:
        if deadline.passed():
            raise TransportTimeout(
                f"{what} the server at {self.address} within {deadline.seconds:g} s"
            )
        self._changed.wait(deadline.left_seconds())

    def close(self) -> None:
        with self._changed:
            self.ended = True
            self.updates.clear()
            self._changed.notify_all()
