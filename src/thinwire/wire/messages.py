"""``encode`` and ``decode``: messages between workers and a server. session.py has their order.

A message that exists is valid: its rules are checked when it is made, by either side. One message
has one encoding. A new message is one class in membership.py or pushes.py, one name in ``Message``,
its places in the tables of session.py, and golden bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, get_args

from thinwire import errors
from thinwire.wire.body import Reader, Writer
from thinwire.wire.frame import HEADER_NBYTES, Frame, pack
from thinwire.wire.limits import DEFAULT_LIMITS, Limits
from thinwire.wire.membership import (
    DIGEST_NBYTES,
    CatchUp,
    CaughtUp,
    Describe,
    Described,
    Join,
    Leave,
    Reason,
    Welcome,
)
from thinwire.wire.pushes import Counted, Late, Push, Refusal, Report, Update

__all__ = [
    "DIGEST_NBYTES",
    "MESSAGES",
    "CatchUp",
    "CaughtUp",
    "Counted",
    "Describe",
    "Described",
    "Join",
    "Late",
    "Leave",
    "Message",
    "Push",
    "Reason",
    "Refusal",
    "Report",
    "Update",
    "Welcome",
    "decode",
    "encode",
    "encode_into",
]

Message: TypeAlias = (
    Join
    | Welcome
    | Push
    | Update
    | Refusal
    | CatchUp
    | Leave
    | Describe
    | CaughtUp
    | Late
    | Report
    | Counted
)

MESSAGES: Mapping[int, type[Message]] = {cls.kind: cls for cls in get_args(Message)}


def encode(
    message: Message,
    *,
    run: int,
    epoch: int,
    worker: int,
    step: int,
    limits: Limits = DEFAULT_LIMITS,
) -> Frame:
    """``message`` as a frame. Payloads are copied once, into its body."""
    body = Writer(type(message).__name__.lower(), limits)
    message.write(body)
    return Frame(message.kind, run, epoch, worker, step, body.finish())


def encode_into(
    out: memoryview,
    message: Message,
    *,
    run: int,
    epoch: int,
    worker: int,
    step: int,
    limits: Limits = DEFAULT_LIMITS,
) -> int:
    """Write ``message`` as a whole frame to the front of ``out``; returns its nbytes."""
    body = Writer(type(message).__name__.lower(), limits)
    message.write(body)
    written = body.finish_into(out[HEADER_NBYTES:])
    header, _ = pack(Frame(message.kind, run, epoch, worker, step, written), limits=limits)
    out[:HEADER_NBYTES] = header
    return HEADER_NBYTES + len(written)


def decode(frame: Frame, *, limits: Limits = DEFAULT_LIMITS) -> Message:
    """The message in ``frame``; payloads are views of its body. Raises only RemoteProtocolError."""
    cls = MESSAGES.get(frame.kind)
    if cls is None:
        raise errors.RemoteProtocolError(
            f"frame: kind {frame.kind}, expected one of {', '.join(map(str, MESSAGES))}"
        )
    body = Reader(cls.__name__.lower(), frame.body, limits)
    try:
        message = cls.read(body)
        body.finish()
    except errors.LocalProtocolError as error:
        raise errors.RemoteProtocolError(str(error)) from error
    return message
