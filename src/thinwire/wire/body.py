"""``Writer`` and ``Reader``: the fields of a body, and their rules. Messages are elsewhere.

A rule is written once, for both directions, and raises LocalProtocolError. Remote bytes enter
through ``messages.decode`` alone, which turns that into RemoteProtocolError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from thinwire import errors
from thinwire.files import Buffer
from thinwire.wire.frame import check_bytes, check_uint
from thinwire.wire.limits import DEFAULT_LIMITS, Limits

_FLOAT64 = struct.Struct("<d")
_ROW = struct.Struct("<IHII")  # piece codec numel nbytes
_NUMBER = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class EncodedBytes:
    """What a codec wrote: its wire id, the number of elements, and the payload, often a view."""

    wire_id: int
    numel: int
    payload: Buffer

    @property
    def nbytes(self) -> int:
        return len(self.payload)

    def copied(self) -> EncodedBytes:
        """The same, with a payload of its own."""
        return EncodedBytes(self.wire_id, self.numel, bytes(self.payload))


@dataclass(frozen=True, slots=True)
class Entry:
    """One compressed piece of a message, under its number."""

    piece: int
    encoded: EncodedBytes

    def __post_init__(self) -> None:
        check_uint("entry: piece", self.piece, bits=32)
        check_uint("entry: codec", self.encoded.wire_id, bits=16)
        check_uint("entry: numel", self.encoded.numel, bits=32)
        check_bytes("entry: payload", memoryview(self.encoded.payload))


def check_positive(where: str, value: int) -> None:
    """Raise LocalProtocolError unless ``value`` is at least 1 and fits in 32 bits."""
    check_uint(where, value, bits=32)
    if value == 0:
        raise errors.LocalProtocolError(f"{where} 0, expected at least 1")


def check_ascending(where: str, pieces: Iterable[int]) -> None:
    """Raise LocalProtocolError unless each piece comes once, in order: one message, one way."""
    for before, piece in pairwise(pieces):
        if piece <= before:
            raise errors.LocalProtocolError(
                f"{where}: piece {piece} after piece {before}, expected ascending, each once"
            )


def check_text(where: str, text: str) -> None:
    """Raise LocalProtocolError if ``text`` has no UTF-8 encoding (a lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise errors.LocalProtocolError(
            f"{where}: text has no UTF-8 encoding at character {error.start} of {len(text)}"
        ) from None


def shortened(text: str) -> str:
    """As much of ``text`` as fits into a message, in valid UTF-8."""
    return text.encode(errors="replace")[: DEFAULT_LIMITS.max_text_nbytes].decode(errors="ignore")


class Writer:
    """Collects the fields of one body, joins them once. ``where`` names the message in errors."""

    def __init__(self, where: str, limits: Limits) -> None:
        self._where = where
        self._limits = limits
        self._parts: list[Buffer] = []

    def uint(self, value: int, nbytes: int) -> None:
        self._parts.append(value.to_bytes(nbytes, "little"))

    def float64(self, value: float) -> None:
        self._parts.append(_FLOAT64.pack(value))

    def raw(self, data: bytes) -> None:
        self._parts.append(data)

    def text(self, text: str) -> None:
        data = text.encode()
        _check_limit(f"{self._where}: text nbytes", len(data), self._limits.max_text_nbytes)
        self.uint(len(data), 4)
        self.raw(data)

    def numbers(self, numbers: tuple[int, ...]) -> None:
        self.count(len(numbers))
        self._parts.extend(_NUMBER.pack(number) for number in numbers)

    def entries(self, entries: tuple[Entry, ...]) -> None:
        self.count(len(entries))
        most = max((entry.encoded.numel for entry in entries), default=0)
        _check_limit(f"{self._where}: numel", most, self._limits.max_numel)
        self._parts.extend(
            _ROW.pack(entry.piece, entry.encoded.wire_id, entry.encoded.numel, entry.encoded.nbytes)
            for entry in entries
        )
        self._parts.extend(entry.encoded.payload for entry in entries)

    def count(self, count: int) -> None:
        _check_limit(f"{self._where}: count", count, self._limits.max_entries)
        self.uint(count, 4)

    def finish(self) -> memoryview:
        """The body. Its limit is checked before its bytes are joined."""
        self._nbytes()
        return memoryview(b"".join(self._parts))

    def finish_into(self, out: memoryview) -> memoryview:
        """The body, written to the front of ``out``, which must have room for it."""
        nbytes = self._nbytes()
        _check_limit(f"{self._where}: body nbytes", nbytes, len(out))
        end = 0
        for part in self._parts:
            start, end = end, end + len(part)
            out[start:end] = part
        return out[:nbytes]

    def _nbytes(self) -> int:
        nbytes = sum(map(len, self._parts))
        _check_limit(f"{self._where}: body nbytes", nbytes, self._limits.max_body_nbytes)
        return nbytes


def _check_limit(where: str, value: int, limit: int) -> None:
    if value > limit:
        raise errors.LocalProtocolError(f"{where} {value}, the limit is {limit}")


class Reader:
    """Takes the fields of one body from its front. ``where`` names the message in errors."""

    def __init__(self, where: str, body: memoryview, limits: Limits) -> None:
        self._where = where
        self._rest = body
        self._limits = limits

    def uint(self, nbytes: int) -> int:
        return int.from_bytes(self._take(nbytes, "a number"), "little")

    def float64(self) -> float:
        value: float = _FLOAT64.unpack(self._take(_FLOAT64.size, "a float64"))[0]
        return value

    def raw(self, nbytes: int) -> bytes:
        return bytes(self._take(nbytes, "a field"))

    def text(self) -> str:
        nbytes = self.uint(4)
        _check_limit(f"{self._where}: text nbytes", nbytes, self._limits.max_text_nbytes)
        try:
            return str(self._take(nbytes, "the text"), "utf-8")
        except UnicodeDecodeError as error:
            raise errors.LocalProtocolError(
                f"{self._where}: text is not UTF-8 at byte {error.start} of {nbytes}"
            ) from None

    def numbers(self, what: str) -> tuple[int, ...]:
        """A table of numbers; ``what`` they are is for errors."""
        count = self.count()
        table = self._take(count * _NUMBER.size, f"a table of {count} {what}")
        return tuple(number for (number,) in _NUMBER.iter_unpack(table))

    def entries(self) -> tuple[Entry, ...]:
        """The table and the payloads, which must fill the rest of the body exactly."""
        count = self.count()
        table = self._take(count * _ROW.size, f"a table of {count} entries")
        rows = list(_ROW.iter_unpack(table))
        most = max((numel for _, _, numel, _ in rows), default=0)
        _check_limit(f"{self._where}: numel", most, self._limits.max_numel)
        total = sum(nbytes for *_, nbytes in rows)
        if total != len(self._rest):
            raise errors.LocalProtocolError(
                f"{self._where}: {len(self._rest)} bytes of payloads, their table says {total}"
            )
        payloads = self._take(total, "the payloads")
        ends = accumulate(nbytes for *_, nbytes in rows)
        return tuple(
            Entry(piece, EncodedBytes(codec, numel, payloads[end - nbytes : end]))
            for (piece, codec, numel, nbytes), end in zip(rows, ends, strict=True)
        )

    def count(self) -> int:
        count = self.uint(4)
        _check_limit(f"{self._where}: count", count, self._limits.max_entries)
        return count

    def _take(self, nbytes: int, what: str) -> memoryview:
        if nbytes > len(self._rest):
            raise errors.LocalProtocolError(
                f"{self._where}: {len(self._rest)} bytes are left, {what} needs {nbytes}"
            )
        taken, self._rest = self._rest[:nbytes], self._rest[nbytes:]
        return taken

    def finish(self) -> None:
        """Refuse bytes that no field has claimed."""
        if len(self._rest):
            raise errors.LocalProtocolError(f"{self._where}: {len(self._rest)} bytes too many")
