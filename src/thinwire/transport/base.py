"""What a transport is: a ``Connection`` for a worker, a ``Listener`` for the server.

Both move whole frames, in order, at most once, and never know what is in them. A connection is one
connection: when it breaks, its owner is told (``TransportClosed``, ``PeerGone``) and makes a new
one. Nothing reconnects behind anybody's back, so no frame that was sent to one server can arrive
at the next. What was sent before the break may or may not have arrived: ask, in a new session.

Threads: any number may call ``send``, ``drop`` and ``close`` while one is in ``receive``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, Protocol, TypeAlias

Buffers: TypeAlias = bytes | tuple[bytes | memoryview, ...]
"""One frame: as it is, or in pieces such as header and body.

Pieces are joined by ``send``, so the caller may use its buffers again at once. That is the only
copy on the way: the receiver looks at the frame where it arrived. ``bytes`` are not copied at all:
who sends one frame to many peers joins it once.
"""

PeerId = NewType("PeerId", int)
"""Names one connection to a listener. Never used again: a worker that comes back has another."""


@dataclass(frozen=True, slots=True)
class Received:
    """``peer`` sent ``frame``. The first one is how a listener's owner learns of a peer."""

    peer: PeerId
    frame: memoryview


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The last word about ``peer``: its connection is over, and a human may read why."""

    peer: PeerId
    reason: str


class Connection(Protocol):
    """A worker's side. Made by a function that waits until the server has answered."""

    @property
    def address(self) -> str:
        """Where the server is, for messages to humans."""

    def send(self, frame: Buffers, *, deadline_seconds: float) -> None:
        """Hand over one frame; waits while the server does not read.

        Raises TransportTimeout, TransportClosed, or LocalProtocolError for a frame over the limit.
        """

    def receive(self, *, deadline_seconds: float, what: str = "a frame") -> memoryview:
        """The next frame. ``what`` is awaited, for the error's text.

        Raises TransportTimeout, or TransportClosed once all that came before the end was received.
        """

    def close(self) -> None:
        """Give what was sent a moment to leave, then end. May be called twice."""


class Listener(Protocol):
    """The server's side: all its workers. Nothing a peer does raises an error here."""

    @property
    def address(self) -> str:
        """Where workers connect to."""

    def receive(self, *, deadline_seconds: float) -> Received | PeerGone | None:
        """What happened next, or None if nothing did in time. TransportClosed after ``close``.

        With 0 seconds it takes what is there and never waits: call until None to take it all.
        """

    def send(self, peer: PeerId, frame: Buffers) -> None:
        """Queue one frame; never waits. A peer whose queue is full is gone: it does not read.

        Sending to a peer that is gone does nothing: its ``PeerGone`` was received or is on its way.
        Raises LocalProtocolError for a frame over the limit.
        """

    def admit(self, peer: PeerId) -> None:
        """Say that this peer is known. Until then it may say no more than a few words.

        See ``TransportLimits.max_stranger_nbytes``. Of a peer that is gone it changes nothing.
        """

    def drop(self, peer: PeerId, reason: str = "") -> None:
        """End this connection now, unsent frames included. Nothing more is heard of the peer.

        A ``reason`` is logged, as for peers that the listener drops by itself.
        """

    def close(self) -> None:
        """Give what was sent a moment to leave, then end. May be called twice."""


def join(frame: Buffers) -> bytes:
    """The frame as one buffer that nobody changes."""
    return frame if isinstance(frame, bytes) else b"".join(frame)
