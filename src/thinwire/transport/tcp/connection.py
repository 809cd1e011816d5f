"""``TcpConnection``: a worker's connection to a server, over TCP."""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from contextlib import suppress

from thinwire.clock import AwakeClock, Deadline
from thinwire.errors import RemoteProtocolError, TransportClosed, TransportTimeout
from thinwire.transport.peer_limits import TransportLimits
from thinwire.transport.tcp.stream import SCRATCH_NBYTES
from thinwire.wire.stream import Buffers, FrameReader, SendQueue, Stream, nbytes_of

_LOOK_SECONDS = 0.25


class TcpConnection:
    """One connection, already up. Made by ``connect``. Heartbeats are sent while a thread is in
    ``receive``: a worker always listens.
    """

    def __init__(
        self, own: socket.socket, stream: Stream, address: str, limits: TransportLimits
    ) -> None:
        own.setblocking(False)
        self.address = address
        self._socket, self._stream, self._limits = own, stream, limits
        self._calls = threading.Lock()  # of TLS: OpenSSL allows one call at a time
        self._sending, self._receiving, self._closing = (threading.Lock() for _ in range(3))
        self._out = SendQueue()
        self._reader = FrameReader(limits.max_message_nbytes)
        self._scratch = memoryview(bytearray(SCRATCH_NBYTES))
        self._arrived: deque[memoryview] = deque()
        self._clock = AwakeClock()
        self._heard = self._beat = self._clock.now
        self._closed, self._is_flushed = False, True

    def await_welcome(self, deadline: Deadline) -> None:
        """Until the server lets this worker in: its first heartbeat says so. Raises OSError."""
        while self._read_or_wait(deadline):
            if deadline.passed():
                raise TimeoutError("it does not let this worker in")

    def send(self, frame: Buffers, *, deadline_seconds: float) -> None:
        deadline, nbytes = Deadline(deadline_seconds), nbytes_of(frame)
        self._limits.check_message(nbytes)
        if not self._sending.acquire(timeout=min(deadline_seconds, threading.TIMEOUT_MAX)):
            raise self._not_taken(nbytes, deadline)
        try:
            self._out.add(frame)
            while not self._flush():
                if deadline.passed():
                    self._out.withdraw()
                    raise self._not_taken(nbytes, deadline)
                self._wait(select.POLLOUT, deadline)
        finally:
            if self._out:
                self._out.own()
            self._sending.release()

    def _not_taken(self, nbytes: int, deadline: Deadline) -> TransportTimeout:
        return TransportTimeout(
            f"sending {nbytes} bytes: not taken by the server at {self.address} "
            f"within {deadline.seconds:g} s"
        )

    def _flush(self) -> bool:
        """Send what the system takes; returns whether that is all."""
        try:
            if self._closed:
                raise ConnectionError
            with self._calls:
                self._is_flushed = self._out.flush(self._stream)
        except OSError:
            self._closed = True
            raise TransportClosed(f"the connection to {self.address} is closed") from None
        return self._is_flushed

    def receive(self, *, deadline_seconds: float, what: str = "a frame") -> memoryview:
        deadline = Deadline(deadline_seconds)
        with self._receiving:
            while not self._arrived:
                try:
                    waited = self._read_or_wait(deadline)
                except OSError as error:
                    reason = f"the connection to {self.address} is closed"
                    detail = f" ({error})" if isinstance(error, TimeoutError) else ""
                    raise TransportClosed(f"{what}: {reason}{detail}") from None
                if waited and deadline.passed() and not self._arrived:
                    raise TransportTimeout(
                        f"{what}: nothing from the server at {self.address} "
                        f"within {deadline.seconds:g} s"
                    )
            return self._arrived.popleft()

    def _read_or_wait(self, deadline: Deadline) -> bool:
        """Take what has come, or wait for more; returns whether nothing was there."""
        if self._closed:
            raise ConnectionError
        try:
            with self._calls:
                nbytes, frames, _ = self._reader.read(self._stream, self._scratch)
        except BlockingIOError:
            self._clock.tick()
            self._keep_alive()
            self._wait(select.POLLIN, deadline)
            return True
        except RemoteProtocolError:
            self._closed = True
            raise
        if not nbytes:
            self._closed = True
            raise ConnectionError
        self._heard = self._clock.tick()
        self._arrived.extend(frame for frame in frames if frame is not None)
        return False

    def _keep_alive(self) -> None:
        """Send a heartbeat if it is time, and give up a server that answers none."""
        now, silence = self._clock.now, self._limits.silence_seconds
        if now - self._heard > silence:
            self._closed = True
            raise TimeoutError(f"nothing came from it for {silence:g} s")
        is_time = now - self._beat >= self._limits.heartbeat_seconds
        if self._is_flushed and not is_time:
            return
        if self._sending.acquire(blocking=False):  # else there is more to send than a heartbeat
            try:
                if is_time:
                    self._beat = now
                    self._out.add_heartbeat()
                with suppress(TransportClosed):
                    self._flush()
            finally:
                self._sending.release()

    def _wait(self, events: int, deadline: Deadline) -> None:
        poll = select.poll()
        poll.register(self._socket, events)
        poll.poll(1000 * min(_LOOK_SECONDS, deadline.left_seconds()))

    def close(self) -> None:
        """What was sent still arrives, if the server takes it within ``linger_seconds``."""
        with self._closing:
            if self._socket.fileno() < 0:
                return
            deadline = Deadline(self._limits.linger_seconds)
            if self._sending.acquire(timeout=deadline.seconds):
                with suppress(TransportClosed):
                    while not (self._flush() or deadline.passed()):
                        self._wait(select.POLLOUT, deadline)
                self._sending.release()
            self._closed = True
            # With bytes unread the system would reset the connection, and what was sent be lost.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
                self._drain(deadline)
                self._socket.shutdown(socket.SHUT_RDWR)
            with self._receiving, self._sending:  # threads in there see the end and let go
                self._socket.close()

    def _drain(self, deadline: Deadline) -> None:
        while not deadline.passed():
            try:
                if not self._socket.recv(SCRATCH_NBYTES):
                    return
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
