"""``PlainStream`` and ``TlsStream``: what a selector needs of a connected socket."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

from thinwire.wire.stream import ENDED

SCRATCH_NBYTES = 1 << 16
_MOST_BUFFERS = 64
_CHUNK_NBYTES = 1 << 15
"""So much goes through TLS at once: whatever is in it, others get their turn soon."""
_MOST_ANSWERS_NBYTES = 1 << 17
_END = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


class PlainStream:
    takes_all = True

    def __init__(self, own: socket.socket) -> None:
        self.recv_into = own.recv_into
        self._sendmsg = own.sendmsg

    def send(self, buffers: Iterable[memoryview]) -> int:
        return self._sendmsg(list(islice(buffers, _MOST_BUFFERS)))

    def push(self) -> None:
        """Nothing is left behind."""


class TlsStream:
    """Records go through memory, not from the socket: OpenSSL reads on until it has something to
    give, and a flood of records that hold nothing would keep it from returning. It allows one call
    at a time: callers hold a lock.
    """

    takes_all = False

    def __init__(
        self, own: socket.socket, context: ssl.SSLContext, *, server_side: bool, host: str = ""
    ) -> None:
        self._socket = own
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._in, self._out, server_side=server_side, server_hostname=host or None
        )
        self._unsent = memoryview(b"")

    def handshake(self) -> None:
        """Raises BlockingIOError until it is done, if the socket does not wait."""
        while True:
            try:
                self._tls.do_handshake()
                self.push()
                return
            except ssl.SSLWantReadError:
                self.push()
                if not self._take():
                    raise ConnectionError(ENDED) from None
            except ssl.SSLError:
                with suppress(OSError):
                    self.push()  # it tells the other side why
                raise

    def certificate(self) -> bytes:
        """The peer's, in DER."""
        return self._tls.getpeercert(binary_form=True) or b""

    def recv_into(self, buffer: memoryview) -> int:
        try:
            with suppress(ssl.SSLWantReadError):
                return self._read(buffer)
            return self._read(buffer) if self._take() else 0
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except _END:
            return 0  # without a close_notify, too: a frame that was cut off is none

    def _read(self, buffer: memoryview) -> int:
        return int(self._tls.read(len(buffer), buffer))

    def _take(self) -> int:
        if self._out.pending + len(self._unsent) > _MOST_ANSWERS_NBYTES:
            raise ConnectionError("it does not read what TLS answers")
        return self._in.write(self._socket.recv(_CHUNK_NBYTES))

    def send(self, buffers: Iterable[memoryview]) -> int:
        self.push()
        front: list[memoryview] = []
        room = _CHUNK_NBYTES
        for buffer in buffers:
            front.append(buffer[:room])
            room -= len(front[-1])
            if not room:
                break
        nbytes = self._tls.write(front[0] if len(front) == 1 else b"".join(front))
        with suppress(BlockingIOError):
            self.push()
        return nbytes

    def push(self) -> None:
        if self._out.pending:
            self._unsent = memoryview(b"".join((self._unsent, self._out.read())))
        while self._unsent:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
