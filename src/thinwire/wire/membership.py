"""Messages of a worker's membership: the handshake, catching up, leaving. See messages.py.

Describe, Join, Welcome, then CatchUp and CaughtUp, at the end Leave; a ``Reason`` says why.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from thinwire import errors
from thinwire.wire.body import Reader, Writer, check_positive, check_text
from thinwire.wire.frame import check_uint


class Reason(enum.IntEnum):
    """Why a message is refused or a session ends."""

    STALE = 1  # a push computed on too old a version: the pieces go back to the worker's residual
    LIMIT = 2  # a push beyond what the server will hold for this worker: they go back as well
    HISTORY = 3  # the versions asked for are not in the log: start from a checkpoint
    DIGEST = 4  # they disagree on names, shapes, recipe, number of workers or the first weights
    UNKNOWN_WORKER = 5  # no such worker, or it has joined already
    EPOCH = 6  # sent to another run, or to the server before its restart: join again
    PROTOCOL = 7  # the peer broke the protocol
    LOST = 8  # a worker is gone for good: everyone stops; the text names it
    STOPPING = 9  # this side shuts down before the training is done
    DONE = 10  # the training is done


def read_reason(where: str, body: Reader) -> Reason:
    code = body.uint(2)
    try:
        return Reason(code)
    except ValueError:
        raise errors.LocalProtocolError(
            f"{where}: reason {code}, expected {min(Reason)}..{max(Reason)}"
        ) from None


DIGEST_NBYTES = 32


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

    This is server ``server`` of ``servers``: with that and the sizes it knows which pieces it owns.
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
class Join:
    """Worker to server: it takes part, and the last version that it has applied.

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
class CaughtUp:
    """Server to worker: all updates up to ``version`` are sent.

    Ends the answer to ``Join`` and ``CatchUp``. If that is not the newest one the worker asks for
    more when it has received these: flow control, so that no history is too long to be sent.
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
        return cls(read_reason("leave", body), body.text())
