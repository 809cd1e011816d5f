"""``TransportLimits``: what one peer may cost, in bytes, messages and seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields

from thinwire import errors
from thinwire.checks import check_positive, check_whole
from thinwire.clock import TokenBucket
from thinwire.wire.frame import MAX_FRAME_NBYTES

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """The most that a transport accepts from, or holds for, one peer. A peer beyond it is dropped.

    ``max_message_nbytes``: the largest frame, with its header. More is not read.

    ``max_unread_messages``, ``max_unread_nbytes``: frames of a peer that a busy server has not
    read, and ``max_unread_total_nbytes`` of all together. At that a peer is not dropped: nothing
    more is read from it, and TCP makes it wait.

    ``max_unsent_messages``, ``max_unsent_nbytes``: frames that a peer has not read. A server does
    not wait for it. So many updates are minutes of training: no healthy worker is so far behind.

    ``max_peers``: connections that have sent a frame. ``max_silent``: that have sent none yet;
    the oldest makes place for a new one.

    ``max_unadmitted_messages``, ``max_unadmitted_nbytes``: what a peer may send until the owner
    admits it: a worker sends Describe and Join, of 4 MiB at most. All such peers together may hold
    as many bytes; then those with the most are dropped.

    ``max_messages_per_second``, ``max_nbytes_per_second``: of one peer; ``burst_seconds`` of it may
    come at once. A worker sends tens of frames a second, and 4 GiB/s is more than a network card
    delivers: only a flood gets there.

    ``first_frame_seconds``: timeout from connecting to the first frame, handshake included.

    ``heartbeat_seconds``: interval of a worker's heartbeats, which the server answers.
    ``silence_seconds``: timeout after which either gives up a frozen or cut off peer.

    ``linger_seconds``: how long ``close`` waits for sent frames to leave.
    """

    max_message_nbytes: int = MAX_FRAME_NBYTES
    max_unread_messages: int = 10_000
    max_unread_nbytes: int = 320 * MIB
    max_unread_total_nbytes: int = 4096 * MIB
    max_unsent_messages: int = 2000
    max_unsent_nbytes: int = 256 * MIB
    max_peers: int = 256
    max_silent: int = 256
    max_unadmitted_messages: int = 32
    max_unadmitted_nbytes: int = 4 * MIB + (1 << 16)
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
        self._check_order("max_unread_nbytes", 1, "max_message_nbytes")
        self._check_order("max_unread_total_nbytes", 1, "max_unread_nbytes")
        self._check_order("max_unsent_nbytes", 1, "max_message_nbytes")
        self._check_order("max_nbytes_per_second", 1 / self.burst_seconds, "max_message_nbytes")
        self._check_order("silence_seconds", 2, "heartbeat_seconds")

    def _check_order(self, larger: str, times: float, smaller: str) -> None:
        value, least = getattr(self, larger), times * getattr(self, smaller)
        if value < least:
            factor = "" if times == 1 else f"{times:g} times "
            raise errors.ConfigError(
                f"transport limits: {larger} must be at least {factor}{smaller}, {least:g}, "
                f"got {value}"
            )

    def check_message(self, nbytes: int) -> None:
        """Raise LocalProtocolError for a frame that the peer would not read."""
        if nbytes > self.max_message_nbytes:
            raise errors.LocalProtocolError(
                f"transport: frame of {nbytes} bytes, the limit is {self.max_message_nbytes}"
            )


DEFAULT_LIMITS = TransportLimits()


class Allowance:
    """What one peer may send now."""

    def __init__(self, limits: TransportLimits, *, now: float) -> None:
        self._limits, burst = limits, limits.burst_seconds
        self._messages = TokenBucket(limits.max_messages_per_second, burst, now=now)
        self._nbytes = TokenBucket(limits.max_nbytes_per_second, burst, now=now)

    def take(self, nbytes: int, *, now: float) -> None:
        """Count one message. Raises RemoteProtocolError if the peer exceeds its rate."""
        if not self._messages.take(1, now=now):
            most = f"{self._limits.max_messages_per_second} messages"
        elif not self._nbytes.take(nbytes, now=now):
            most = f"{self._limits.max_nbytes_per_second} bytes"
        else:
            return
        raise errors.RemoteProtocolError(f"it sent more than {most} in a second")
