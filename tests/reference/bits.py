"""Integers as strings of "0" and "1": Rice and Elias-delta codes as their definitions read."""

from __future__ import annotations

from collections.abc import Sequence

MAX_RICE = 30


def rice(gap: int, parameter: int) -> str:
    """gap >> parameter zeros, a one, the low bits of the gap."""
    low = format(gap & ((1 << parameter) - 1), f"0{parameter}b") if parameter else ""
    return "0" * (gap >> parameter) + "1" + low


def rice_nbits(gaps: Sequence[int], parameter: int) -> int:
    return sum((gap >> parameter) + 1 + parameter for gap in gaps)


def best_rice(gaps: Sequence[int]) -> int:
    """The parameter with the shortest stream, the smallest among equals."""
    return min(range(MAX_RICE + 1), key=lambda parameter: rice_nbits(gaps, parameter))


def elias_delta(value: int) -> str:
    """The length of ``value`` in Elias-gamma code, then its bits but the first (3.3)."""
    bits = format(value, "b")
    length = format(len(bits), "b")
    return "0" * (len(length) - 1) + length + bits[1:]


def pack(bits: str) -> bytes:
    """First bit highest, padded with zeros to a whole byte."""
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))


def unpack(data: bytes) -> str:
    return "".join(format(byte, "08b") for byte in data)


class Stream:
    """Takes numbers from the front of a string of bits."""

    def __init__(self, data: bytes) -> None:
        self._bits = unpack(data)
        self._at = 0

    def take(self, count: int) -> int:
        taken = self._bits[self._at : self._at + count]
        self._at += count
        return int(taken, 2) if taken else 0

    def zeros(self) -> int:
        """Skip zeros and tell how many there were."""
        one = self._bits.index("1", self._at)
        count, self._at = one - self._at, one
        return count

    def rice(self, parameter: int) -> int:
        quotient = self.zeros()
        self.take(1)
        return quotient << parameter | self.take(parameter)

    def elias_delta(self) -> int:
        length = self.take(self.zeros() + 1)
        return 1 << (length - 1) | self.take(length - 1)

    def rest(self) -> str:
        return self._bits[self._at :]
