"""``listen``: a server's side over TCP. One selector for all its workers, no thread for each."""

from __future__ import annotations

import socket
import threading
import time

from thinwire.address import check_address, check_secured, split_address
from thinwire.clock import Deadline
from thinwire.errors import TransportClosed, TransportError
from thinwire.keys.settings import ServerKeys
from thinwire.keys.tls import ServerTls
from thinwire.transport.base import PeerGone, PeerId, Received
from thinwire.transport.peer_limits import DEFAULT_LIMITS, TransportLimits
from thinwire.transport.tcp.connections import CHECK_SECONDS, Connections
from thinwire.wire.stream import Buffers, nbytes_of

_MOST_WAIT_SECONDS = 0.25
_AWAY_SECONDS = 0.02  # until another thread serves the connections of a busy owner


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
        self.address, self._limits = address, limits
        self._polling = threading.Lock()  # of the thread that serves the connections
        self._lock = threading.Lock()  # of all that follows
        self._all = Connections(own, tls, limits)
        self._closed = self._attended = False
        self._thread = threading.Thread(target=self._stand_in, name="thinwire port", daemon=True)
        self._thread.start()

    def receive(self, *, deadline_seconds: float) -> Received | PeerGone | None:
        deadline, looked = Deadline(deadline_seconds), False
        while True:
            with self._lock:
                self._check_open()
                if self._all.inbox:
                    return self._all.take()
            if looked and deadline.passed():
                return None
            self._attended = looked = True
            self._poll(min(_MOST_WAIT_SECONDS, deadline.left_seconds()))
            self._attended = False

    def _stand_in(self) -> None:
        while not self._closed:
            time.sleep(_AWAY_SECONDS)
            if not self._attended:
                self._poll(0.0)

    def _poll(self, seconds: float) -> None:
        """Wait until something can be done, and do it."""
        with self._polling:
            ready = {} if self._closed else self._all.wait(seconds)
            with self._lock:
                if not self._closed:
                    self._all.serve(ready)

    def send(self, peer: PeerId, frame: Buffers) -> None:
        nbytes = nbytes_of(frame)
        self._limits.check_message(nbytes)
        with self._lock:
            self._check_open()
            if peer in self._all.peers:
                self._all.send(self._all.peers[peer], frame, nbytes)

    def admit(self, peer: PeerId) -> None:
        with self._lock:
            if peer in self._all.peers:
                self._all.peers[peer].admit()

    def allows(self, peer: PeerId, rank: int) -> bool:
        with self._lock:
            return peer in self._all.peers and self._all.peers[peer].grant.allows(rank)

    def drop(self, peer: PeerId, reason: str = "") -> None:
        with self._lock:
            self._check_open()
            self._all.drop(peer, reason)

    def close(self) -> None:
        deadline = Deadline(self._limits.linger_seconds)
        while not (deadline.passed() or self._is_flushed()):
            self._poll(min(CHECK_SECONDS, deadline.left_seconds()))
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._thread.join()
        with self._polling, self._lock:  # no thread waits in the selector
            self._all.close()

    def _is_flushed(self) -> bool:
        with self._lock:
            return all(peer.is_flushed for peer in self._all.peers.values())

    def _check_open(self) -> None:
        if self._closed:
            raise TransportClosed(f"the listener at {self.address} is closed")
