"""``Link``: a TCP connection that a listener has accepted, seen from below ZeroMQ.

A ROUTER cannot end a connection, does not say when one ends, and counts messages only when they
are complete: a message of endless parts takes memory and never shows up. The kernel knows better.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
import termios
from contextlib import suppress

from thinwire.transport.base import PeerId
from thinwire.transport.peer_limits import Allowance, TransportLimits
from thinwire.transport.zeromq.inbox import Flow

_BYTES = struct.Struct(
    "=120xQQ"
)  # tcpi_bytes_acked, tcpi_bytes_received of Linux's struct tcp_info
_WRAP_NBYTES = 44  # around a frame, at most: a header of 9 bytes, and what CURVE adds


class Link:
    """One accepted connection.

    ``fd`` is libzmq's descriptor, which is how messages name their connection. ``own`` is a copy,
    which goes on to mean this connection and no other; None if that had ended already.
    """

    def __init__(
        self, fd: int, own: socket.socket | None, limits: TransportLimits, *, now: float
    ) -> None:
        self.fd = fd
        self.since = now
        self.allowance = Allowance(limits, now=now)
        self.peer: PeerId | None = None
        self.routing_id = b""  # libzmq's name for it, known from its first message on
        self.flow = _flow(limits)
        self.admitted = False  # the owner knows it
        self.dropped = False  # its messages are discarded
        self.turns_left = 0  # once disconnected: how many reads until its last message was read
        self.quiet_seconds = 0.0
        self._limits = limits
        self._received_nbytes = 0
        self._taken_nbytes = 0  # of it, by libzmq
        self._is_read = True
        self._read_nbytes = 0  # by us, with what is around frames
        self._frame_nbytes = 0  # by us, frames alone
        self._messages = 0
        self._queued_nbytes = 0
        self._acked_nbytes = 0  # as of the last look, frames only
        self._other_nbytes = 0  # acknowledged as well, but not of frames
        self._socket = own

    def begin(self, peer: PeerId, routing_id: bytes) -> None:
        """Its first message came: it is a peer."""
        self.peer, self.routing_id = peer, routing_id
        self.flow = _flow(self._limits)

    def count_read(self, nbytes: int) -> None:
        """A complete message was read."""
        self._is_read = True
        self._read_nbytes += nbytes + _WRAP_NBYTES
        self._frame_nbytes += nbytes
        self._messages += 1

    def look(self, seconds: float) -> None:
        """Note what has come. ``seconds`` since the last look, as far as this process was awake."""
        _, received = self._counters()
        is_quiet = received == self._received_nbytes
        self.quiet_seconds = self.quiet_seconds + seconds if is_quiet else 0.0
        self._received_nbytes = received
        self._taken_nbytes = received - self._waiting_nbytes()

    def holds_too_much(self, *, dry: bool) -> bool:
        """Whether libzmq holds more of it than it should, in many messages or in one without end.

        ``dry``: there was nothing to read since the last ``look``, so that it is one message.
        """
        most = self._limits.max_message_nbytes + max(1 << 16, self._limits.max_message_nbytes // 16)
        if dry and self._is_read:
            self._is_read, self._read_nbytes = False, self._received_nbytes
        elif not dry and self.peer is not None:
            most += self._limits.max_unread_nbytes
        return self._taken_nbytes - self._read_nbytes > most

    def excess_before_admission(self) -> str | None:
        """Why it has sent more than a peer may that the owner has not admitted, or None."""
        most = self._limits.max_unadmitted_nbytes
        most_messages = self._limits.max_unadmitted_messages
        if self.admitted:
            return None
        if self._messages > most_messages:
            return f"it sent more than {most_messages} messages before it was admitted"
        if self._received_nbytes > most:
            return f"it sent more than {most} bytes before it was admitted"
        return None

    @property
    def unread_nbytes(self) -> int:
        """What libzmq holds of it, as of the last look, at most."""
        return max(0, self._taken_nbytes - self._frame_nbytes)

    def refusal_to_send(self, nbytes: int) -> str | None:
        """Why the peer is too far behind to get so many bytes more, or None.

        First by the credits that it sent, then by what its machine has acknowledged.
        """
        unread, messages = self.flow.unread()
        most, most_messages = self._limits.max_unsent_nbytes, self._limits.max_unsent_messages
        # It sends credits only after each quarter.
        if unread + nbytes > most + most // 4 or messages >= most_messages + most_messages // 4:
            return f"it does not read: {messages} messages, {unread} bytes, wait for it"
        waiting = self._unsent_nbytes(enough=most - nbytes)
        if waiting > most - nbytes:
            return f"it does not read: {waiting} bytes wait for it, and {nbytes} more are to come"
        return None

    def queued(self, nbytes: int) -> None:
        """A message was given to libzmq."""
        self._queued_nbytes += nbytes

    def _unsent_nbytes(self, *, enough: int) -> int:
        """How much the peer's machine has not received; asks the kernel only if over ``enough``."""
        if self._queued_nbytes - self._acked_nbytes > enough:
            acked, _ = self._counters()
            # Headers and heartbeats are acknowledged too. They show when all else has arrived.
            self._other_nbytes = max(self._other_nbytes, acked - self._queued_nbytes)
            self._acked_nbytes = acked - self._other_nbytes
        return self._queued_nbytes - self._acked_nbytes

    def _counters(self) -> tuple[int, int]:
        """Bytes that the peer has acknowledged, and that have come from it."""
        if self._socket is None:
            return self._queued_nbytes, 0
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES.size)
        acked, received = _BYTES.unpack(info)
        return acked, received

    def _waiting_nbytes(self) -> int:
        """What lies in the kernel's buffer."""
        if self._socket is None:
            return 0
        answer = fcntl.ioctl(self._socket, termios.FIONREAD, bytes(4))
        return int.from_bytes(answer, sys.byteorder)

    def cut(self) -> None:
        """End the connection without libzmq; what has left for the peer arrives."""
        if self._socket is not None:
            with suppress(OSError):  # it has ended already
                # When the last copy is closed, reset it, even if the peer cannot send just now.
                self._socket.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self._socket.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """End it and throw away what lies in the kernel, so that libzmq does not read that."""
        if self._socket is not None:
            unspecified = bytes(
                16
            )  # a sockaddr of family AF_UNSPEC, which Python cannot connect to
            ctypes.CDLL(None).connect(self._socket.fileno(), unspecified, len(unspecified))
        self.cut()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _flow(limits: TransportLimits) -> Flow:
    return Flow(
        in_nbytes=limits.max_unread_nbytes // 2, in_messages=limits.max_unread_messages // 2
    )


def own_socket(fd: int, *, local_port: int) -> socket.socket | None:
    """A copy of a descriptor, unless it has been closed since, or is something else's by now."""
    try:
        own = os.dup(fd)
    except OSError:
        return None
    try:
        copy = socket.socket(fileno=own)
    except OSError:
        os.close(own)
        return None
    if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] == local_port:
        return copy
    copy.close()
    return None
