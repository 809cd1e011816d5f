"""What one peer may cost, in bytes, messages and seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields

from thinwire import errors
from thinwire.settings import check_positive, check_whole

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """The most that a transport accepts from, or holds for, one peer.

    ``max_message_nbytes``: the largest frame, 65 MiB of body and 40 bytes of header. More is not
    read: the connection ends. A frame is one part of a ZeroMQ message, more parts end it too.

    ``max_unread_messages``: frames of a peer that wait for the server. Then the peer has to wait,
    which is how a slow server slows its workers down. Times the largest frame it is the memory
    that a peer can take, so it is small; it costs no speed, since a server reads all the time.

    ``max_unsent_messages``, ``max_unsent_nbytes``: what waits for a peer that does not read. Then
    the peer is gone, since a server waits for nobody. Some hundred updates are seconds of
    training, which is more than a healthy worker is behind.

    ``max_peers``: connections that have spoken; as many again may have said nothing yet.

    ``max_messages_per_second``, ``max_nbytes_per_second``: of one peer, bursts of one second
    included; above this it is gone. A worker sends tens of frames a second, and 4 GiB/s is more
    than a network card brings: only who floods gets there.

    ``first_frame_seconds``: from connecting to the first frame. Who says nothing takes a place.

    ``keepalive_seconds``: how often the kernel asks the machine of a quiet peer whether it is
    there; after four times this without an answer the connection ends. Says nothing about whether
    the program there is alive: that takes a message and a deadline.

    ``linger_seconds``: how long ``close`` waits for what was sent to leave.
    """

    max_message_nbytes: int = 65 * MIB + 40
    max_unread_messages: int = 4
    max_unsent_messages: int = 500
    max_unsent_nbytes: int = 256 * MIB
    max_peers: int = 256
    max_messages_per_second: int = 10_000
    max_nbytes_per_second: int = 4096 * MIB
    first_frame_seconds: float = 30.0
    keepalive_seconds: float = 10.0
    linger_seconds: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            check_positive(value, owner="transport limits", field=field.name)
            if field.type == "int":
                check_whole(value, least=1, owner="transport limits", field=field.name)
        for name in ("max_unsent_nbytes", "max_nbytes_per_second"):
            if getattr(self, name) < self.max_message_nbytes:
                raise errors.ConfigError(
                    f"transport limits: {name} must be at least max_message_nbytes, "
                    f"{self.max_message_nbytes}, got {getattr(self, name)}"
                )

    def check_message(self, nbytes: int) -> None:
        """Raise LocalProtocolError for a frame that the peer would not read."""
        if nbytes > self.max_message_nbytes:
            raise errors.LocalProtocolError(
                f"transport: frame of {nbytes} bytes, the limit is {self.max_message_nbytes}"
            )


DEFAULT_LIMITS = TransportLimits()


class Allowance:
    """What one peer may still send now: one second's worth at most, refilled as time goes by."""

    def __init__(self, limits: TransportLimits, *, now: float) -> None:
        self._limits = limits
        self._messages = float(limits.max_messages_per_second)
        self._nbytes = float(limits.max_nbytes_per_second)
        self._now = now

    def take(self, nbytes: int, *, now: float) -> str | None:
        """Count one message; returns why it is too much, or None."""
        limits, elapsed = self._limits, now - self._now
        self._now = now
        per_second = limits.max_messages_per_second
        self._messages = min(self._messages + elapsed * per_second, per_second) - 1
        nbytes_per_second = limits.max_nbytes_per_second
        self._nbytes = min(self._nbytes + elapsed * nbytes_per_second, nbytes_per_second) - nbytes
        if self._messages < 0:
            return f"it sent more than {per_second} messages in a second"
        if self._nbytes < 0:
            return f"it sent more than {nbytes_per_second} bytes in a second"
        return None
