"""``Port``: a ZeroMQ socket and its monitor; one thread may wait for it while others send.

A ZeroMQ socket is not safe for threads, and has no wait that lets go of a lock. Hence a thread that
uses the socket holds ``lock``, and releases it while it waits for the descriptors.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import zmq
from zmq.utils.monitor import recv_monitor_message

from thinwire.transport.peer_limits import TransportLimits, check_descriptors

# Ten days, twice that with libzmq's jitter: a socket never connects a second time. -1 would say so
# too, but then libzmq throws away what had arrived and was not read yet.
_NEVER_MILLISECONDS = 864_000_000
# It travels as 16 bits, in tenths of a second.
_MOST_TTL_MILLISECONDS = 6_553_500
# What CURVE adds to a message (33 bytes), which libzmq counts as part of it.
_CURVE_NBYTES = 64
# Of a context, its threads, the socket and its monitor, one connection, and keys.
_DESCRIPTORS = 16


class Port:
    """Owns its context: a context has one list of allowed keys, and ending it ends everything."""

    def __init__(self, kind: int, *, limits: TransportLimits, ipv6: bool) -> None:
        check_descriptors(_DESCRIPTORS, what="a socket of ZeroMQ")
        self.lock = threading.Lock()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(kind)
        _set_options(self.socket, limits)
        self.socket.set(zmq.IPV6, ipv6)
        self._monitor = self.socket.get_monitor_socket()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._socket_fd = int(self.socket.get(zmq.FD))
        self._fds = (self._socket_fd, int(self._monitor.get(zmq.FD)), self._wake_fd)
        self.closed = False

    def monitor_events(self) -> Iterator[tuple[zmq.Event, int]]:
        """What happened to the connections since the last call. With the lock."""
        while int(self._monitor.get(zmq.EVENTS)) & zmq.POLLIN:
            message = recv_monitor_message(self._monitor)
            yield zmq.Event(message["event"]), message["value"]

    def wait_in(self, seconds: float) -> None:
        """Until there may be something to receive. Without the lock, and by one thread."""
        _poll(self._fds, seconds)
        if not self.closed:
            with self.lock:
                self._clear_wake()

    def wait_out(self, seconds: float) -> None:
        """Until there may be room to send. Without the lock, by any thread."""
        _poll((self._socket_fd,), seconds)

    def readable(self) -> bool:
        """Whether a message is there. With the lock."""
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def writable(self) -> bool:
        """Whether a message could be sent at once. With the lock."""
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLOUT)

    def wake_if_readable(self) -> None:
        """Call after any use of the socket but receiving, with the lock.

        Such a use also handles what makes the descriptor readable, so a thread that waits for it
        would sleep on although something has arrived.
        """
        if self.readable():
            self.wake()

    def wake(self) -> None:
        if not self.closed:
            os.eventfd_write(self._wake_fd, 1)

    def _clear_wake(self) -> None:
        if not self.closed:
            try:
                os.eventfd_read(self._wake_fd)
            except BlockingIOError:
                return

    def close(self, *, lost: bool = False) -> None:
        """Waits until what was sent has left, or as long as the socket lingers, unless ``lost``."""
        with self.lock:
            if self.closed:
                return
            self.wake()
            self.closed = True
            self.socket.disable_monitor()
            self._monitor.close(linger=0)
            self.socket.close(linger=0 if lost else None)
            os.close(self._wake_fd)
        self.context.term()


def _set_options(socket: zmq.Socket[bytes], limits: TransportLimits) -> None:
    socket.set(zmq.LINGER, _milliseconds(limits.linger_seconds))
    # 0 is unlimited. With any limit a peer can end the process: libzmq 4.3.5 stops reading when it
    # is reached, and aborts (!_io_error) if the connection then breaks with a ZMTP PING in the
    # buffer, or a heartbeat is due (libzmq #4767). So the limits are ours: flow.py, inbox.py.
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.SNDHWM, limits.max_unsent_messages)
    socket.set(zmq.MAXMSGSIZE, limits.max_message_nbytes + _CURVE_NBYTES)
    socket.set(zmq.RECONNECT_IVL, _NEVER_MILLISECONDS)
    socket.set(zmq.HANDSHAKE_IVL, _milliseconds(limits.first_frame_seconds))
    # The kernel gives up on a peer that does not take what was sent, be it gone or frozen.
    socket.set(zmq.TCP_MAXRT, _milliseconds(limits.silence_seconds))


def send_heartbeats(socket: zmq.Socket[bytes], limits: TransportLimits) -> None:
    """Let libzmq's own thread send heartbeats to the server, with the timeout for ours.

    Only workers send them, servers answer: a heartbeat that is due while a socket lingers could
    abort the process (see RCVHWM), and no peer must be able to do that to a server.
    """
    socket.set(zmq.HEARTBEAT_IVL, _milliseconds(limits.heartbeat_seconds))
    socket.set(zmq.HEARTBEAT_TIMEOUT, _milliseconds(limits.silence_seconds))
    socket.set(
        zmq.HEARTBEAT_TTL, min(_MOST_TTL_MILLISECONDS, _milliseconds(limits.silence_seconds))
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))


def _poll(fds: tuple[int, ...], seconds: float) -> None:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll(seconds * 1000)
