"""A server's side over TCP: all its workers on one ROUTER."""

from __future__ import annotations

import time

import zmq

from thinwire.errors import TransportClosed, TransportError
from thinwire.transport.address import check_address, check_secured, is_ipv6
from thinwire.transport.base import Buffers, PeerGone, PeerId, Received, join
from thinwire.transport.deadline import Deadline
from thinwire.transport.keys import ServerCurve
from thinwire.transport.limits import DEFAULT_LIMITS, TransportLimits
from thinwire.transport.zeromq.auth import secure_server
from thinwire.transport.zeromq.links import Link, own_socket
from thinwire.transport.zeromq.port import Port
from thinwire.transport.zeromq.roster import Roster

_CHECK_SECONDS = 0.1
# Below this a copy is faster than lending the buffer.
_LEND_NBYTES = 1 << 16


def listen(
    address: str,
    *,
    curve: ServerCurve | None = None,
    insecure: bool = False,
    limits: TransportLimits = DEFAULT_LIMITS,
) -> ZeromqListener:
    """Listen at ``tcp://HOST:PORT``; port 0 is any free one, see ``address`` of the result.

    ``insecure`` allows an address that others than this machine reach without keys. Raises
    TransportError if the address is taken or not of this machine.
    """
    check_address(address, least_port=0)
    check_secured(address, has_keys=curve is not None, insecure=insecure)
    port = Port(zmq.ROUTER, limits=limits, ipv6=is_ipv6(address))
    try:
        port.socket.set(zmq.ROUTER_MANDATORY, 1)
        if curve is not None:
            secure_server(port.socket, curve)
        port.socket.bind(address)
    except zmq.ZMQError as error:
        port.close()
        raise TransportError(f"cannot listen at {address}: {error.strerror}") from error
    return ZeromqListener(port, limits)


class ZeromqListener:
    """Made by ``listen``."""

    def __init__(self, port: Port, limits: TransportLimits) -> None:
        self._port = port
        self._limits = limits
        self._address = port.socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._local_port = int(self._address.rpartition(":")[2])
        self._roster = Roster(limits)
        self._checked = time.monotonic()

    @property
    def address(self) -> str:
        return self._address

    def receive(self, *, deadline_seconds: float) -> Received | PeerGone | None:
        deadline = Deadline(deadline_seconds)
        while True:
            with self._port.lock:
                self._check_open()
                event, dry = self._next(time.monotonic())
            if event is not None or deadline.passed():
                return event
            if dry:
                self._port.wait_in(min(_CHECK_SECONDS, deadline.left_seconds()))

    def _next(self, now: float) -> tuple[Received | PeerGone | None, bool]:
        """Read one message: what happened, and whether there was nothing to read."""
        self._note_connections(now)
        event, dry = None, False
        if not self._roster.gone:
            try:
                event = self._read(now)
            except zmq.Again:
                dry = True
            self._roster.turn(dry=dry)
        if dry and now - self._checked > _CHECK_SECONDS:
            self._checked = now
            self._roster.check(now)
        if event is None and self._roster.gone:
            return self._roster.gone.popleft(), dry
        return event, dry

    def _note_connections(self, now: float) -> None:
        for event, fd in self._port.monitor_events():
            if event is zmq.Event.ACCEPTED:
                own = own_socket(fd, local_port=self._local_port)
                self._roster.accepted(Link(fd, own, self._limits, now=now))
            elif event is zmq.Event.DISCONNECTED:
                self._roster.disconnected(fd)

    def _read(self, now: float) -> Received | None:
        """One message, or None if it was not to be received. Raises zmq.Again if there is none."""
        socket = self._port.socket
        route = socket.recv(zmq.NOBLOCK, copy=False)
        part = socket.recv(copy=False)  # all parts of a message are there, or none
        parts = 1
        more = part.more
        while more:
            more = socket.recv(copy=False).more
            parts += 1
        link = self._link_of(route, now)
        if link is None or link.peer is None or link.dropped:
            return None
        link.hears()
        nbytes = len(part.buffer)
        why = link.allowance.take(nbytes, now=now)
        if parts > 1:
            why = f"it sent a message of {parts} parts, expected 1"
        elif nbytes > self._limits.max_message_nbytes:
            why = f"it sent {nbytes} bytes, the limit is {self._limits.max_message_nbytes}"
        if why is not None:
            self._roster.expel(link, why)
            return None
        return Received(link.peer, part.buffer)

    def _link_of(self, route: zmq.Frame, now: float) -> Link | None:
        link = self._roster.of_route(route.bytes)
        if link is not None:
            return link
        self._note_connections(now)  # it was accepted before it could send
        try:
            fd = int(route.get(zmq.SRCFD))
        except zmq.ZMQError:
            return None  # it speaks ZMTP 2 or older, as random bytes seem to: nobody of ours does
        return self._roster.bind(route.bytes, fd)

    def send(self, peer: PeerId, frame: Buffers) -> None:
        data = join(frame)
        self._limits.check_message(len(data))
        with self._port.lock:
            self._check_open()
            link = self._roster.of_peer(peer)
            if link is None:
                return
            why = self._queue(link, data)
            if why is not None:
                self._roster.expel(link, why)
                self._port.wake()
            self._port.wake_if_readable()

    def _queue(self, link: Link, data: bytes) -> str | None:
        """Give a frame to libzmq; returns why it does not go, if that is the peer's fault."""
        most = self._limits.max_unsent_nbytes - len(data)
        waiting = link.unsent_nbytes(enough=most)
        if waiting > most:
            return (
                f"it does not read: {waiting} bytes wait for it, and {len(data)} more are to come"
            )
        try:
            self._port.socket.send(link.routing_id, zmq.SNDMORE | zmq.NOBLOCK)
            self._port.socket.send(data, zmq.NOBLOCK, copy=len(data) < _LEND_NBYTES)
        except zmq.Again:
            return f"it does not read: {self._limits.max_unsent_messages} messages wait for it"
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return None  # it has just ended, which the monitor reports
        link.queued(len(data))
        return None

    def drop(self, peer: PeerId) -> None:
        with self._port.lock:
            self._check_open()
            link = self._roster.of_peer(peer)
            if link is not None:
                self._roster.drop(link)
            self._roster.forget(peer)

    def close(self) -> None:
        self._port.close()
        self._roster.close()

    def _check_open(self) -> None:
        if self._port.closed:
            raise TransportClosed(f"the listener at {self._address} is closed")
