"""What one peer may cost, in bytes, messages and seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields

from thinwire import errors
from thinwire.settings import check_positive, check_whole

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """The most that a transport accepts from, or holds for, one peer. Who exceeds one is gone.

    ``max_message_nbytes``: the largest frame, 65 MiB of body and 40 bytes of header. More is not
    read: the connection ends. A frame is one part of a ZeroMQ message, more parts end it too.

    ``max_unread_messages``, ``max_unread_nbytes``: frames of a peer that wait for a busy server. A
    worker stops at half of this by itself and waits, which is how a slow server slows its workers
    down; only who ignores that gets here. ``max_unread_total_nbytes``: of all peers together; then
    the one with the most is gone.

    ``max_unsent_messages``, ``max_unsent_nbytes``: frames that a peer has not read. A server waits
    for nobody. So many updates are minutes of training: no healthy worker is behind so far.

    ``max_peers``: connections that have spoken. ``max_strangers``: that have said nothing yet; the
    oldest makes place for a new one.

    ``max_stranger_messages``, ``max_stranger_nbytes``: what a peer may send until the owner admits
    it. A worker says two words, of which one describes a model in 4 MiB at most. So many bytes may
    be unread of all such peers together, too; then those with the most are gone.

    ``max_messages_per_second``, ``max_nbytes_per_second``: of one peer; ``burst_seconds`` of it may
    come at once. A worker sends tens of frames a second, and 4 GiB/s is more than a network card
    brings: only who floods gets there.

    ``first_frame_seconds``: from connecting to the first frame.

    ``heartbeat_seconds``: how often a worker shows that it is alive, and looks whether the server
    is. ``silence_seconds``: how long either may be frozen or cut off before the other gives up. A
    process that is stopped for a few seconds, or busy with anything, keeps its connection.

    ``linger_seconds``: how long ``close`` waits for what was sent to leave.
    """

    max_message_nbytes: int = 65 * MIB + 40
    max_unread_messages: int = 10_000
    max_unread_nbytes: int = 320 * MIB
    max_unread_total_nbytes: int = 4096 * MIB
    max_unsent_messages: int = 2000
    max_unsent_nbytes: int = 256 * MIB
    max_peers: int = 256
    max_strangers: int = 256
    max_stranger_messages: int = 32
    max_stranger_nbytes: int = 4 * MIB + (1 << 16)
    max_messages_per_second: int = 10_000
    max_nbytes_per_second: int = 4096 * MIB
    burst_seconds: float = 1.0
    first_frame_seconds: float = 30.0
    heartbeat_seconds: float = 5.0
    silence_seconds: float = 20.0
    linger_seconds: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            check_positive(value, owner="transport limits", field=field.name)
            if field.type == "int":
                check_whole(value, least=1, owner="transport limits", field=field.name)
        # Half of what may be unread is a worker's own bound, and it hears of each eighth.
        self._check_order("max_unread_nbytes", 4, "max_message_nbytes")
        self._check_order("max_unread_total_nbytes", 1, "max_unread_nbytes")
        self._check_order("max_unsent_nbytes", 1, "max_message_nbytes")
        self._check_order("max_nbytes_per_second", 1 / self.burst_seconds, "max_message_nbytes")
        self._check_order("silence_seconds", 2, "heartbeat_seconds")

    def _check_order(self, larger: str, times: float, smaller: str) -> None:
        found, least = getattr(self, larger), times * getattr(self, smaller)
        if found < least:
            factor = "" if times == 1 else f"{times:g} times "
            raise errors.ConfigError(
                f"transport limits: {larger} must be at least {factor}{smaller}, {least:g}, "
                f"got {found}"
            )

    def check_message(self, nbytes: int) -> None:
        """Raise LocalProtocolError for a frame that the peer would not read."""
        if nbytes > self.max_message_nbytes:
            raise errors.LocalProtocolError(
                f"transport: frame of {nbytes} bytes, the limit is {self.max_message_nbytes}"
            )


DEFAULT_LIMITS = TransportLimits()


class Allowance:
    """What one peer may still send now: one burst at most, refilled as time goes by."""

    def __init__(self, limits: TransportLimits, *, now: float) -> None:
        self._limits = limits
        self._seconds = limits.burst_seconds
        self._messages = limits.max_messages_per_second * self._seconds
        self._nbytes = limits.max_nbytes_per_second * self._seconds
        self._now = now

    def take(self, nbytes: int, *, now: float) -> str | None:
        """Count one message; returns why it is too much, or None."""
        elapsed, self._now = now - self._now, now
        most, most_nbytes = self._limits.max_messages_per_second, self._limits.max_nbytes_per_second
        self._messages = self._refilled(self._messages, most, elapsed) - 1
        self._nbytes = self._refilled(self._nbytes, most_nbytes, elapsed) - nbytes
        if self._messages < 0:
            return f"it sent more than {most} messages in a second"
        if self._nbytes < 0:
            return f"it sent more than {most_nbytes} bytes in a second"
        return None

    def _refilled(self, left: float, per_second: int, elapsed: float) -> float:
        return min(left + elapsed * per_second, per_second * self._seconds)
