"""``Peer``: one connection that a listener has accepted, from its hello to its last frame."""

from __future__ import annotations

import socket
from contextlib import suppress

from thinwire.errors import RemoteProtocolError
from thinwire.keys.lists import Grant
from thinwire.keys.tls import ServerTls
from thinwire.transport.base import PeerId
from thinwire.transport.peer_limits import Allowance, TransportLimits
from thinwire.transport.tcp.stream import PlainStream, TlsStream
from thinwire.wire.hello import REFUSALS, Hello, HelloReader, Word, word_for
from thinwire.wire.stream import ENDED, Buffers, FrameReader, SendQueue, Stream


class Peer:
    """Its methods never wait, and its caller holds the listener's lock."""

    def __init__(
        self, own: socket.socket, limits: TransportLimits, tls: ServerTls | None, *, now: float
    ) -> None:
        own.setblocking(False)
        self.fd = own.fileno()
        self.id: PeerId | None = None
        """None until its first frame has come."""
        self.since = self.heard = now
        self.admitted = False
        self.grant = Grant()
        self.events = 0  # what the selector waits for
        self.out = SendQueue()
        self.is_flushed = True
        self.unread_nbytes = self.unread_messages = 0
        self._socket, self._limits, self._tls = own, limits, tls
        self._allowance = Allowance(limits, now=now)
        self._reader = FrameReader(min(limits.max_unadmitted_nbytes, limits.max_message_nbytes))
        self._hello = HelloReader()
        self._shaking: TlsStream | None = None
        self._stream: Stream | None = None
        self._nbytes = self._messages = 0

    def read(self, scratch: memoryview) -> tuple[list[memoryview | None], bool]:
        """Receive once: the frames that are complete, None for a heartbeat, and whether more may
        be there. Raises BlockingIOError if nothing is, OSError if the connection has ended, and
        RemoteProtocolError for what it must not send.
        """
        if self._stream is None:
            self._stream = self._shake_hands()
            self.out.add_heartbeat()  # it learns that it was let in
            return [], True
        nbytes, frames, more = self._reader.read(self._stream, scratch)
        if not nbytes:
            raise ConnectionError(ENDED)
        return frames, more

    def _shake_hands(self) -> Stream:
        if self._shaking is None:
            self._answer(self._hello.read(self._socket.recv))
            if self._shaking is None:
                return PlainStream(self._socket)
        self._shaking.handshake()
        grant = None if self._tls is None else self._tls.grant(self._shaking.certificate())
        if grant is None:
            raise RemoteProtocolError(REFUSALS[Word.UNKNOWN_KEY][0])
        self.grant = grant
        return self._shaking

    def _answer(self, hello: Hello) -> None:
        tls, certificate = self._tls, b"" if self._tls is None else self._tls.certificate
        is_known = tls is not None and tls.grant(hello.certificate) is not None
        word = word_for(hello, has_keys=tls is not None, is_known=is_known)
        self._socket.send(Hello(word, certificate).pack())
        if word in REFUSALS:
            raise RemoteProtocolError(REFUSALS[word][0])
        if tls is not None:
            context = tls.context(hello.certificate)
            self._shaking = TlsStream(self._socket, context, server_side=True)

    @property
    def progress(self) -> int:
        """How far it came in shaking hands: with keys, only who has one comes to the end."""
        return (self._shaking is not None) + 2 * (self._stream is not None)

    def count(self, frame: memoryview | None, *, now: float) -> None:
        """Raises RemoteProtocolError for a frame, or heartbeat, that is one too many."""
        nbytes, most = 0 if frame is None else len(frame), self._limits
        self._messages += 1
        self._nbytes += nbytes
        self._allowance.take(nbytes, now=now)
        if self.admitted:
            return
        if self._messages > most.max_unadmitted_messages:
            what = f"{most.max_unadmitted_messages} messages"
        elif self._nbytes > most.max_unadmitted_nbytes:
            what = f"{most.max_unadmitted_nbytes} bytes"
        else:
            return
        raise RemoteProtocolError(f"it sent more than {what} before it was admitted")

    def is_revoked(self) -> bool:
        """Whether its key was taken off the list after it was let in."""
        if self._tls is None or not isinstance(self._stream, TlsStream):
            return False
        grant = self._tls.grant(self._stream.certificate())
        self.grant = grant or self.grant
        return grant is None

    def admit(self) -> None:
        self.admitted = True
        self._reader.most_nbytes = self._limits.max_message_nbytes

    @property
    def held_nbytes(self) -> int:
        """What it makes this process hold: frames that are unread, and one that is not complete."""
        return self.unread_nbytes + self._reader.unfinished_nbytes

    def queue(self, frame: Buffers, nbytes: int) -> None:
        """Queue a frame, send what the system takes. RemoteProtocolError: the queue is full."""
        messages, waiting = len(self.out) + 1, self.out.nbytes + nbytes
        if messages > self._limits.max_unsent_messages or waiting > self._limits.max_unsent_nbytes:
            text = f"it does not read: {messages} messages, {waiting} bytes, wait for it"
            raise RemoteProtocolError(text)
        self.out.add(frame)
        self.flush()
        if self.out:
            self.out.own()

    def flush(self) -> None:
        """Raises OSError if the connection broke."""
        if self._stream is not None:
            self.is_flushed = self.out.flush(self._stream)

    def close(self) -> None:
        """What the system has taken still goes to the peer."""
        end(self._socket)
        self._socket.close()


def tune(own: socket.socket) -> None:
    with suppress(OSError):  # it has ended already
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def end(own: socket.socket) -> None:
    """Say that nothing more comes, and throw away what has come: with bytes unread the system would
    reset the connection, and the peer lose what it has not read yet. Raises nothing.
    """
    with suppress(OSError):
        own.shutdown(socket.SHUT_WR)
        for _ in range(64):
            if not own.recv(1 << 16):
                return
