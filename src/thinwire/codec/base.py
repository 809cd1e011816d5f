"""``Codec``: a pure map from one flat float32 tensor to bytes, and back.

A codec is a frozen dataclass that holds its settings and nothing else. It reads no clock and no
global random generator: the same tensor, settings and seed always give the same bytes. ``feedback``
keeps what a codec leaves out; ``wire`` decides how its bytes travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from thinwire.errors import ConfigError, CorruptPayloadError, NonFiniteError
from thinwire.files import Buffer

Payload: TypeAlias = Buffer
"""What a codec writes, and what it is read back from."""

MAX_NUMEL = 2**31 - 1
"""The largest tensor a codec takes."""

PRIVATE_WIRE_IDS = range(0x8000, 0x10000)
"""Wire ids for codecs outside Thinwire."""


class Codec(Protocol):
    """All that a codec must provide. ``thinwire.testing.check_codec`` holds it to its word.

    Two more class variables may be set: ``unbiased`` (its mean over seeds is the tensor itself, so
    it needs no feedback) and ``shared_seed`` (all workers must use the same seed).
    """

    name: ClassVar[str]
    """How people spell it: configuration, command line, logs."""

    wire_id: ClassVar[int]
    """How frames spell it. Never changed, never reused; 0x8000 and above are private."""

    sparse: ClassVar[bool]
    """Whether it sends some elements and leaves out the rest, which decode to zero."""

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        """Return the payload for ``x`` (flat, contiguous, float32, CPU). Never changes ``x``.

        Raises NonFiniteError if ``x`` holds an inf or a nan that the payload cannot carry.
        """

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        """Write the tensor that ``payload`` stands for into ``out``.

        Needs no settings: encoders choose, decoders obey. Raises CorruptPayloadError on any payload
        that ``encode`` cannot have written, and then leaves ``out`` unspecified.
        """

    def max_nbytes(self, numel: int) -> int:
        """The largest payload for ``numel`` elements, so that buffers are allocated once."""


def check_codec(value: object, *, owner: str) -> None:
    """Refuse what is no codec: a name, or a class without its parentheses."""
    needed = ("wire_id", "encode", "decode", "max_nbytes")
    if isinstance(value, type) or not all(hasattr(value, name) for name in needed):
        raise ConfigError(f"{owner}: expected a codec such as OneBit(), got {value!r}")


@runtime_checkable
class Writing(Protocol):
    """A codec that can write a payload into memory that the caller has."""

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        """Write what ``encode`` returns to the front of ``out``, and return its nbytes.

        ``out`` is bytes, at least ``max_nbytes`` of them (else ValueError), and apart from ``x``.
        What it holds beyond the payload is unspecified afterwards, up to ``max_nbytes``.
        """

    def max_nbytes(self, numel: int) -> int:
        """As every codec has it."""


@runtime_checkable
class Adding(Protocol):
    """A codec that can add a payload to a tensor without decoding it first."""

    @staticmethod
    def add(payload: Payload, out: Tensor, *, weight: float) -> None:
        """Do ``out += weight * decoded``, or raise CorruptPayloadError and leave ``out`` alone."""


@runtime_checkable
class Summing(Protocol):
    """A codec that can add up payloads in one pass over memory."""

    @staticmethod
    def sum(payloads: Sequence[Payload], out: Tensor, *, weight: float) -> None:
        """Do ``out = weight * decoded + weight * decoded + ...``, added to zero in this order.

        Raises CorruptPayloadError, and then leaves ``out`` alone.
        """


@runtime_checkable
class Checking(Protocol):
    """A codec that can tell whether it wrote a payload without decoding it."""

    @staticmethod
    def check(payload: Payload, numel: int) -> None:
        """Raise CorruptPayloadError if ``decode`` into ``numel`` elements would."""


def is_unbiased(codec: Codec) -> bool:
    return bool(getattr(codec, "unbiased", False))


def shares_seed(codec: Codec) -> bool:
    return bool(getattr(codec, "shared_seed", False))


def finite(nbytes: int | None, name: str) -> int:
    """What a native encoder has written, or NonFiniteError where that is nothing."""
    if nbytes is None:
        raise NonFiniteError(f"{name}: the tensor holds an inf or a nan; only float32 can carry it")
    return nbytes


def accepted(fault: str | None, name: str, numel: int) -> None:
    """Raise CorruptPayloadError if a native reader returned a fault."""
    if fault is not None:
        raise CorruptPayloadError(f"{name}: {fault} ({numel} elements)")
