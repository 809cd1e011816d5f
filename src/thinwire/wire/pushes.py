"""Messages of every step: pushes of workers, updates, acknowledgements. See messages.py.

A Push is acknowledged by Counted, or by a Refusal for pieces that are not counted. Late and Report
are information for the other side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from thinwire import errors
from thinwire.wire.body import Entry, Reader, Writer, check_ascending, check_text
from thinwire.wire.frame import check_uint
from thinwire.wire.membership import Reason, read_reason


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
        # -0.0 is refused because "not given" has one encoding, 0.0.
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
class Counted:
    """Server to worker: acknowledges ``pieces`` of the frame's step, counted now or before.

    They need not be sent again, even to a server that is restarted. ``version`` is the server's.
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """Server to worker: one message is refused, and why. ``version`` is the server's.

    ``pieces`` of the push of the frame's step were not counted: the worker adds them to its
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
        return cls(body.uint(8), read_reason("refusal", body), body.text(), body.numbers("pieces"))


@dataclass(frozen=True, slots=True)
class Late:
    """Server to worker: ``version`` waits for these ``workers``, which have not pushed."""

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
    """Worker to server, periodically: the norm of its residual, which is lost if it is lost."""

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
