"""What workers and a server say to each other. When they may say it is in session.py.

A message that exists is valid: its rules are checked when it is made, whoever makes it. One message
has one encoding. A new message is one class here, one name in ``Message``, its places in the tables
of session.py, and golden bytes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, get_args

from thinwire import errors
from thinwire.wire.body import (
    Entry,
    Reader,
    Writer,
    check_ascending,
    check_positive,
    check_text,
)
from thinwire.wire.frame import (
    DEFAULT_LIMITS,
    HEADER_NBYTES,
    Frame,
    Limits,
    check_uint,
    pack,
)

DIGEST_NBYTES = 32


class Reason(enum.IntEnum):
    """Why a message is refused or a session ends."""

    STALE = 1  # a push computed on too old a version: the pieces go back to the worker's residual
    LIMIT = 2  # a push beyond what the server will hold for this worker: they go back as well
    HISTORY = 3  # the versions wanted are not in the log: start from a checkpoint
    DIGEST = 4  # they disagree on names, shapes, recipe, number of workers or the first weights
    UNKNOWN_WORKER = 5  # no such worker, or it has joined already
    EPOCH = 6  # sent to another run, or to the server before its restart: join again
    PROTOCOL = 7  # the peer broke the protocol
    LOST = 8  # a worker is gone for good: everyone stops; the text names it
    STOPPING = 9  # this side shuts down before the training is done
    DONE = 10  # the training is done


@dataclass(frozen=True, slots=True)
class Join:
    """Worker to server: that it takes part, and the last version that it has applied.

    ``digest`` is the SHA-256 of names, shapes and recipe. The server sends the updates after
    ``version``. ``checksums`` are those of the weights, one for each tensor described; at version 0
    only, and empty if they are not given.
    """

    kind: ClassVar[int] = 1
    workers: int
    pieces: int
    digest: bytes
    version: int
    checksums: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_positive("join: workers", self.workers)
        check_uint("join: pieces", self.pieces, bits=32)
        check_uint("join: version", self.version, bits=64)
        if len(self.digest) != DIGEST_NBYTES:
            raise errors.LocalProtocolError(
                f"join: digest of {len(self.digest)} bytes, expected {DIGEST_NBYTES}"
            )
        for checksum in self.checksums:
            check_uint("join: checksum", checksum, bits=32)
        if self.checksums and self.version != 0:
            raise errors.LocalProtocolError(
                f"join: {len(self.checksums)} checksums at version {self.version}, expected none"
            )

    def write(self, body: Writer) -> None:
        body.uint(self.workers, 4)
        body.uint(self.pieces, 4)
        body.raw(self.digest)
        body.uint(self.version, 8)
        if self.version == 0:
            body.numbers(self.checksums)

    @classmethod
    def read(cls, body: Reader) -> Join:
        workers, pieces, digest = body.uint(4), body.uint(4), body.raw(DIGEST_NBYTES)
        version = body.uint(8)
        return cls(workers, pieces, digest, version, () if version else body.numbers("checksums"))


@dataclass(frozen=True, slots=True)
class Welcome:
    """Server to worker, the answer to ``Join``: the server's latest version and its settings."""

    kind: ClassVar[int] = 2
    version: int
    quorum: int
    staleness: int

    def __post_init__(self) -> None:
        check_uint("welcome: version", self.version, bits=64)
        check_positive("welcome: quorum", self.quorum)
        check_uint("welcome: staleness", self.staleness, bits=32)

    def write(self, body: Writer) -> None:
        body.uint(self.version, 8)
        body.uint(self.quorum, 4)
        body.uint(self.staleness, 4)

    @classmethod
    def read(cls, body: Reader) -> Welcome:
        return cls(body.uint(8), body.uint(4), body.uint(4))


@dataclass(frozen=True, slots=True)
class Push:
    """Worker to server: compressed gradients, computed on ``version``, of the frame's step.

    ``learning_rate`` is what the gradients will be multiplied by, or 0 for not given. A step may
    take several pushes, each with some of the pieces.
    """

    kind: ClassVar[int] = 3
    version: int
    learning_rate: float
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        check_uint("push: version", self.version, bits=64)
        rate = self.learning_rate
        # -0.0 is refused because 0.0 is the one way to say "not given".
        if not math.isfinite(rate) or math.copysign(1.0, rate) < 0:
            raise errors.LocalProtocolError(
                f"push: learning rate {rate}, expected a finite positive number, or 0 for not given"
            )
        check_ascending("push", (entry.piece for entry in self.entries))

    def write(self, body: Writer) -> None:
        body.uint(self.version, 8)
        body.float64(self.learning_rate)
        body.entries(self.entries)

    @classmethod
    def read(cls, body: Reader) -> Push:
        return cls(body.uint(8), body.float64(), body.entries())


@dataclass(frozen=True, slots=True)
class Update:
    """Server to worker: what to apply as ``version``. A version may take several updates."""

    kind: ClassVar[int] = 4
    version: int
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        check_uint("update: version", self.version, bits=64)
        check_ascending("update", (entry.piece for entry in self.entries))

    def write(self, body: Writer) -> None:
        body.uint(self.version, 8)
        body.entries(self.entries)

    @classmethod
    def read(cls, body: Reader) -> Update:
        return cls(body.uint(8), body.entries())


@dataclass(frozen=True, slots=True)
class Refusal:
    """Server to worker: no, to one message. The server's ``version``, and why.

    ``pieces`` of the push of the frame's step were not counted: the worker takes them back into its
    residual. Only STALE and LIMIT give pieces back.
    """

    kind: ClassVar[int] = 5
    version: int
    reason: Reason
    text: str
    pieces: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_uint("refusal: version", self.version, bits=64)
        check_text("refusal", self.text)
        for piece in self.pieces:
            check_uint("refusal: piece", piece, bits=32)
        check_ascending("refusal", self.pieces)
        if self.pieces and self.reason not in (Reason.STALE, Reason.LIMIT):
            raise errors.LocalProtocolError(
                f"refusal: {len(self.pieces)} pieces with {self.reason.name}, expected none"
            )

    def write(self, body: Writer) -> None:
        body.uint(self.version, 8)
        body.uint(self.reason, 2)
        body.text(self.text)
        body.numbers(self.pieces)

    @classmethod
    def read(cls, body: Reader) -> Refusal:
        return cls(body.uint(8), _read_reason("refusal", body), body.text(), body.numbers("pieces"))


def _read_reason(where: str, body: Reader) -> Reason:
    code = body.uint(2)
    try:
        return Reason(code)
    except ValueError:
        raise errors.LocalProtocolError(
            f"{where}: reason {code}, expected {min(Reason)}..{max(Reason)}"
        ) from None


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Worker to server: send the updates after ``version`` again."""

    kind: ClassVar[int] = 6
    version: int

    def __post_init__(self) -> None:
        check_uint("catchup: version", self.version, bits=64)

    def write(self, body: Writer) -> None:
        body.uint(self.version, 8)

    @classmethod
    def read(cls, body: Reader) -> CatchUp:
        return cls(body.uint(8))


@dataclass(frozen=True, slots=True)
class Leave:
    """Both ways, last: this session ends, and why. It is answered by a ``Leave``."""

    kind: ClassVar[int] = 8
    reason: Reason
    text: str

    def __post_init__(self) -> None:
        check_text("leave", self.text)

    def write(self, body: Writer) -> None:
        body.uint(self.reason, 2)
        body.text(self.text)

    @classmethod
    def read(cls, body: Reader) -> Leave:
        return cls(_read_reason("leave", body), body.text())


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor's name and shape."""

    name: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        check_text("describe", self.name)
        check_uint("describe: dimensions", len(self.shape), bits=8)
        for length in self.shape:
            check_uint("describe: length", length, bits=32)


@dataclass(frozen=True, slots=True)
class Describe:
    """Worker to server, first: what it trains, so that a server needs no model of its own.

    ``server`` of ``servers`` is asked: by that and the sizes it knows which pieces are its own.
    ``lead`` is the run of server 0, and 0 for that one itself: servers do not know each other, and
    by this their logs show that they belong together.
    """

    kind: ClassVar[int] = 9
    server: int
    servers: int
    recipe: str
    tensors: tuple[Described, ...]
    lead: int = 0

    def __post_init__(self) -> None:
        check_positive("describe: servers", self.servers)
        check_uint("describe: lead", self.lead, bits=64)
        check_uint("describe: server", self.server, bits=32)
        if self.server >= self.servers:
            raise errors.LocalProtocolError(
                f"describe: server {self.server}, expected 0..{self.servers - 1}"
            )
        check_text("describe", self.recipe)

    def write(self, body: Writer) -> None:
        body.uint(self.server, 4)
        body.uint(self.servers, 4)
        body.uint(self.lead, 8)
        body.text(self.recipe)
        body.count(len(self.tensors))
        for tensor in self.tensors:
            body.text(tensor.name)
            body.uint(len(tensor.shape), 1)
            for length in tensor.shape:
                body.uint(length, 4)

    @classmethod
    def read(cls, body: Reader) -> Describe:
        server, servers, lead, recipe = body.uint(4), body.uint(4), body.uint(8), body.text()
        tensors = tuple(_read_tensor(body) for _ in range(body.count()))
        return cls(server, servers, recipe, tensors, lead)


def _read_tensor(body: Reader) -> Described:
    return Described(body.text(), tuple(body.uint(4) for _ in range(body.uint(1))))


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Server to worker: all updates up to ``version`` are sent.

    Ends the answer to ``Join`` and ``CatchUp``. If that is not the newest one the worker asks for
    more when it has taken these, so that no history is too long to be sent.
    """

    kind: ClassVar[int] = 10
    version: int

    def __post_init__(self) -> None:
        check_uint("caughtup: version", self.version, bits=64)

    def write(self, body: Writer) -> None:
        body.uint(self.version, 8)

    @classmethod
    def read(cls, body: Reader) -> CaughtUp:
        return cls(body.uint(8))


@dataclass(frozen=True, slots=True)
class Late:
    """Server to worker: ``version`` is open for long, and these ``workers`` have not pushed."""

    kind: ClassVar[int] = 11
    version: int
    workers: tuple[int, ...]

    def __post_init__(self) -> None:
        check_uint("late: version", self.version, bits=64)
        check_ascending("late", self.workers)
        for worker in self.workers:
            check_uint("late: worker", worker, bits=32)

    def write(self, body: Writer) -> None:
        body.uint(self.version, 8)
        body.numbers(self.workers)

    @classmethod
    def read(cls, body: Reader) -> Late:
        return cls(body.uint(8), body.numbers("workers"))


@dataclass(frozen=True, slots=True)
class Report:
    """Worker to server, now and then: the norm of what it owes, which is lost if it is lost."""

    kind: ClassVar[int] = 12
    owed: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.owed) or math.copysign(1.0, self.owed) < 0:
            raise errors.LocalProtocolError(
                f"report: owed {self.owed}, expected a finite number, not negative"
            )

    def write(self, body: Writer) -> None:
        body.float64(self.owed)

    @classmethod
    def read(cls, body: Reader) -> Report:
        return cls(body.float64())


@dataclass(frozen=True, slots=True)
class Counted:
    """Server to worker: it has these ``pieces`` of the frame's step, now or since long ago.

    They need not be sent again, even to a server that is restarted. The server's ``version``.
    """

    kind: ClassVar[int] = 13
    version: int
    pieces: tuple[int, ...]

    def __post_init__(self) -> None:
        check_uint("counted: version", self.version, bits=64)
        check_ascending("counted", self.pieces)
        for piece in self.pieces:
            check_uint("counted: piece", piece, bits=32)

    def write(self, body: Writer) -> None:
        body.uint(self.version, 8)
        body.numbers(self.pieces)

    @classmethod
    def read(cls, body: Reader) -> Counted:
        return cls(body.uint(8), body.numbers("pieces"))


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
    """The frame that says ``message``. Payloads are copied once, into its body."""
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
    """Write the whole frame that says ``message`` to the front of ``out``; returns its nbytes."""
    body = Writer(type(message).__name__.lower(), limits)
    message.write(body)
    written = body.finish_into(out[HEADER_NBYTES:])
    header, _ = pack(Frame(message.kind, run, epoch, worker, step, written), limits=limits)
    out[:HEADER_NBYTES] = header
    return HEADER_NBYTES + len(written)


def decode(frame: Frame, *, limits: Limits = DEFAULT_LIMITS) -> Message:
    """What ``frame`` says; payloads are views of its body. Raises only RemoteProtocolError."""
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
