"""``ZeromqConnection``: a worker's connection to a server, over TCP."""

from __future__ import annotations

import logging
import time
from collections import deque

import zmq

from thinwire.errors import Refused, RemoteProtocolError, TransportClosed, TransportTimeout
from thinwire.transport.address import check_address, check_secured, is_ipv6
from thinwire.transport.base import Buffers, join
from thinwire.transport.keys import WorkerCurve
from thinwire.transport.peer_limits import DEFAULT_LIMITS, Deadline, TransportLimits
from thinwire.transport.zeromq.auth import secure_worker
from thinwire.transport.zeromq.inbox import COUNTS_NBYTES, Flow
from thinwire.transport.zeromq.port import Port, send_heartbeats

_logger = logging.getLogger(__name__)

_FIRST_SECONDS = 5.0


class Waiting:
    """One wait for the server at ``address``."""

    def __init__(self, address: str, deadline: Deadline, *, has_keys: bool) -> None:
        self._address, self._deadline = address, deadline
        keys = "is this its public key" if has_keys else "does it expect keys"
        self._doubts = f"is it a Thinwire server, {keys}, or is it full?"
        self._next = next_reminder(0.0)
        self.reached = False
        """Whether anything listens there."""

    def until_reminder(self) -> float:
        """Seconds to wait at most before ``remind`` has something to say."""
        return max(0.0, min(self._deadline.left_seconds(), self._next - self._waited()))

    def remind(self) -> None:
        """Log what is waited for, if that is due."""
        waited = self._waited()
        if waited < self._next or self._deadline.passed():
            return
        self._next = next_reminder(waited)
        end = f"giving up after {self._deadline.seconds:.3g} s"
        if self.reached:
            state = f"what listens there does not let this worker in yet; {self._doubts}"
        else:
            state = "nothing answers yet; is `thinwire serve` running there?"
        _logger.warning("waiting for %s: %s %s", self._address, state, end)

    def failure(self) -> str:
        """Why it is given up."""
        seconds = f"within {self._deadline.seconds:g} s"
        if self.reached:
            return (
                f"what listens at {self._address} did not let this worker in {seconds}: "
                f"{self._doubts}"
            )
        return (
            f"no server answered at {self._address} {seconds}: is it running, and is the address "
            "right?"
        )

    def _waited(self) -> float:
        return self._deadline.seconds - self._deadline.left_seconds()


def next_reminder(waited: float) -> float:
    """The first of 5, 10, 20, 40, ... seconds that is still to come."""
    seconds = _FIRST_SECONDS
    while seconds <= waited:
        seconds *= 2
    return seconds


_RETRY_SECONDS = 0.05
# The kernel retries after a second, and then ever more rarely: it is better to begin anew with
# a server that refused connections for a while (see door.py).
_ATTEMPT_MILLISECONDS = 2500
# How long a wait may overlook what another thread took from the descriptor.
_LOOK_SECONDS = 0.01
_FAILED = (
    zmq.Event.CLOSED
    | zmq.Event.DISCONNECTED
    | zmq.Event.CONNECT_RETRIED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
)


def connect(
    address: str,
    *,
    deadline_seconds: float,
    curve: WorkerCurve | None = None,
    insecure: bool = False,
    limits: TransportLimits = DEFAULT_LIMITS,
) -> ZeromqConnection:
    """Connect to the server at ``tcp://HOST:PORT``, trying again until it answers.

    ``insecure`` allows a server that is not on this machine without keys. Raises TransportTimeout
    if no server answers in time, Refused if it does not know this worker's key.
    """
    check_address(address, least_port=1)
    check_secured(address, has_keys=curve is not None, insecure=insecure)
    deadline = Deadline(deadline_seconds)
    waiting = Waiting(address, deadline, has_keys=curve is not None)
    while True:
        port = Port(zmq.DEALER, limits=limits, ipv6=is_ipv6(address))
        try:
            send_heartbeats(port.socket, limits)
            port.socket.set(zmq.CONNECT_TIMEOUT, _ATTEMPT_MILLISECONDS)
            if curve is not None:
                secure_worker(port.socket, curve)
            port.socket.connect(address)
            welcome = _shake_hands(port, address, deadline, waiting)
        except BaseException:
            port.close(lost=True)
            raise
        if welcome:
            return ZeromqConnection(port, address, limits)
        port.close(lost=True)
        if deadline.passed():
            raise TransportTimeout(waiting.failure())
        time.sleep(min(_RETRY_SECONDS, deadline.left_seconds()))


def _shake_hands(port: Port, address: str, deadline: Deadline, waiting: Waiting) -> bool:
    """Wait for the outcome of one attempt: whether it succeeded."""
    while True:
        for event, _ in port.monitor_events():
            if event is zmq.Event.HANDSHAKE_SUCCEEDED:
                return True
            if event is zmq.Event.HANDSHAKE_FAILED_AUTH:
                raise Refused(
                    f"the server at {address} does not know this worker's key: "
                    "is it in the server's list of allowed keys?"
                )
            if event is zmq.Event.CONNECTED:
                waiting.reached = True
            elif event & _FAILED:
                return False
        if deadline.passed():
            return False
        waiting.remind()
        port.wait_in(waiting.until_reminder())


class ZeromqConnection:
    """One TCP connection, already up. Made by ``connect``."""

    def __init__(self, port: Port, address: str, limits: TransportLimits) -> None:
        self._port = port
        self._address = address
        self._limits = limits
        self._lost = False
        self._flow = Flow(
            in_nbytes=limits.max_unsent_nbytes, in_messages=limits.max_unsent_messages
        )
        self._arrived: deque[memoryview] = deque()  # found while looking for room to send
        self._arrived_nbytes = 0

    @property
    def address(self) -> str:
        return self._address

    def send(self, frame: Buffers, *, deadline_seconds: float) -> None:
        deadline = Deadline(deadline_seconds)
        data = join(frame)
        self._limits.check_message(len(data))
        while not self._try_send(data):
            if deadline.passed():
                raise TransportTimeout(
                    f"sending {len(data)} bytes: not taken by the server at {self._address} "
                    f"within {deadline.seconds:g} s"
                )
            self._port.wait_out(min(_LOOK_SECONDS, deadline.left_seconds()))

    def _try_send(self, data: bytes) -> bool:
        with self._port.lock:
            if self._ended():
                raise TransportClosed(f"the connection to {self._address} is closed")
            try:
                return self._has_room(len(data)) and self._sent(data)
            finally:
                self._port.wake_if_readable()

    def _has_room(self, nbytes: int) -> bool:
        """Whether the server has read so much that this may follow."""
        if self._fits(nbytes):
            return True
        # The credits of the server may be behind frames, which must not get lost.
        while self._arrived_nbytes < self._limits.max_unsent_nbytes:
            frame = self._read()
            if frame is None:
                break
            self._arrived.append(frame)
            self._arrived_nbytes += len(frame)
            self._port.wake()
        return self._fits(nbytes)

    def _fits(self, nbytes: int) -> bool:
        unread, messages = self._flow.unread()
        most, most_messages = self._limits.max_unread_nbytes, self._limits.max_unread_messages
        return unread + nbytes <= most // 2 and messages < max(1, most_messages // 2)

    def _sent(self, data: bytes) -> bool:
        try:
            self._port.socket.send(data, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        self._flow.sent(len(data))
        return True

    def receive(self, *, deadline_seconds: float, what: str = "a frame") -> memoryview:
        deadline = Deadline(deadline_seconds)
        while True:
            with self._port.lock:
                ended = self._ended()  # before the last look: what arrived before the end is there
                frame = None if self._port.closed else self._try_receive()
            if frame is not None:
                return frame
            if ended:
                raise TransportClosed(f"{what}: the connection to {self._address} is closed")
            if deadline.passed():
                raise TransportTimeout(
                    f"{what}: nothing from the server at {self._address} "
                    f"within {deadline.seconds:g} s"
                )
            self._port.wait_in(deadline.left_seconds())

    def _try_receive(self) -> memoryview | None:
        if self._arrived:
            frame = self._arrived.popleft()
            self._arrived_nbytes -= len(frame)
        else:
            unread = self._read()
            if unread is None:
                return None
            frame = unread
        self._flow.read(len(frame))
        self._send_credits()
        return frame

    def _read(self) -> memoryview | None:
        """The next frame from the socket, if there is one; takes in the server's credits."""
        while True:
            try:
                part = self._port.socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            if not part.more:
                return part.buffer
            counts = self._port.socket.recv(copy=False)
            if counts.more or len(counts.buffer) != COUNTS_NBYTES:
                raise RemoteProtocolError(f"{self._address} sent a message of more than one part")
            self._flow.take_credits(counts.bytes)

    def _send_credits(self) -> None:
        if self._flow.due() and not self._lost and self._port.writable():
            self._port.socket.send_multipart([b"", self._flow.credits()], zmq.NOBLOCK)
            self._port.wake_if_readable()

    def _ended(self) -> bool:
        if not self._port.closed:
            for event, _ in self._port.monitor_events():
                self._lost = self._lost or event is zmq.Event.DISCONNECTED
        return self._lost or self._port.closed

    def close(self) -> None:
        with self._port.lock:
            lost = self._ended()
        self._port.close(lost=lost)
