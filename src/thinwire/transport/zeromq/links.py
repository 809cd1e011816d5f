"""The TCP connections that a listener has accepted, seen from below ZeroMQ.

A ROUTER cannot end a connection, does not say when one ends, and counts messages only when they
are complete: a message of endless parts takes memory and never shows up. The kernel knows better.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

from thinwire.transport.base import PeerId
from thinwire.transport.limits import MIB, Allowance, TransportLimits

_BYTES = struct.Struct(
    "=120xQQ"
)  # tcpi_bytes_acked, tcpi_bytes_received of Linux's struct tcp_info
_KERNEL_NBYTES = 16 * MIB  # what may be in the kernel's own buffers, generously


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
        self.routing_id = b""  # libzmq's name for it, known from its first message on
        self.peer: PeerId | None = None
        self.dropped = False  # nothing more is heard of it
        self.turns_left = 0  # once disconnected: how many reads until its last message was read
        self._most_unfinished = 2 * limits.max_message_nbytes + _KERNEL_NBYTES
        self._heard = True
        self._mark = 0
        self._queued_nbytes = 0
        self._acked_nbytes = 0  # as of the last look, frames only
        self._other_nbytes = 0  # acknowledged as well, but not of frames
        self._socket = own

    def hears(self) -> None:
        """A complete message was read."""
        self._heard = True

    def too_much_unfinished(self) -> bool:
        """Whether it sent more than a message without completing one.

        Ask only when there is nothing left to read: otherwise it may be us who did not read.
        """
        _, received = self._counters()
        if self._heard:
            self._heard, self._mark = False, received
        return received - self._mark > self._most_unfinished

    def queued(self, nbytes: int) -> None:
        """A frame was given to libzmq."""
        self._queued_nbytes += nbytes

    def unsent_nbytes(self, *, enough: int) -> int:
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

    def cut(self) -> None:
        """End the connection, whatever libzmq thinks of it."""
        if self._socket is not None:
            with suppress(OSError):  # it has ended already
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


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
