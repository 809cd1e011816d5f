"""The contract of a transport: ``Connection`` for a worker, ``Listener`` for the server.

Both deliver whole frames, in order, at most once, and never look into them. When a connection
breaks, its owner is told (``TransportClosed``, ``PeerGone``) and makes a new one. A transport never
reconnects by itself, so that no frame that was sent to one server can arrive at the next. What was
sent before the break may or may not have arrived: a new session finds out.

Threads: any number may call ``send``, ``drop`` and ``close`` while one is in ``receive``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, Protocol

from thinwire.wire.stream import Buffers

PeerId = NewType("PeerId", int)
"""Names one connection to a listener. Never reused: a worker that comes back has another."""


@dataclass(frozen=True, slots=True)
class Received:
    """``peer`` sent ``frame``. The first one is how a listener's owner learns of a peer."""

    peer: PeerId
    frame: memoryview


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The connection of ``peer`` is closed, for a ``reason`` to log. Its last event."""

    peer: PeerId
    reason: str


class Connection(Protocol):
    """A worker's side. The function that makes it waits for the server's answer."""

    @property
    def address(self) -> str:
        """Where the server is, for logs and errors."""

    def send(self, frame: Buffers, *, deadline_seconds: float) -> None:
        """Hand over one frame; waits while the server does not read (backpressure).

        Raises TransportTimeout, TransportClosed, or LocalProtocolError for a frame over the limit.
        After a timeout the frame still arrives if its beginning had left, and else never does.
        """

    def receive(self, *, deadline_seconds: float, what: str = "a frame") -> memoryview:
        """The next frame. ``what`` it should be is for the error's text.

        Raises TransportTimeout, or TransportClosed once all that came before the end was received.
        """

    def close(self) -> None:
        """Close, after giving sent frames a moment to leave. Idempotent."""


class Listener(Protocol):
    """The server's side, of all its workers. No peer can make it raise an error."""

    @property
    def address(self) -> str:
        """Where workers connect to."""

    def receive(self, *, deadline_seconds: float) -> Received | PeerGone | None:
        """The next event, or None after the deadline. Raises TransportClosed after ``close``.

        With 0 seconds it never waits: call until None to take all that has arrived.
        """

    def send(self, peer: PeerId, frame: Buffers) -> None:
        """Queue one frame; never waits. A peer whose queue is full does not read, and is dropped.

        Sending to a peer that is gone does nothing: its ``PeerGone`` was received or is on its way.
        Raises LocalProtocolError for a frame over the limit.
        """

    def admit(self, peer: PeerId) -> None:
        """Lift the limits of unadmitted peers from this peer: see ``TransportLimits``.

        Does nothing for a peer that is gone.
        """

    def allows(self, peer: PeerId, rank: int) -> bool:
        """Whether the key of this peer, if it has one, may be used by the worker of this rank."""

    def drop(self, peer: PeerId, reason: str = "") -> None:
        """Close this connection now, with its unsent frames; no more events of this peer follow.

        A ``reason`` is logged, as for peers that the listener drops by itself.
        """

    def close(self) -> None:
        """Close, after giving sent frames a moment to leave. Idempotent."""
