"""``Nonzero``: a lossless list of (index, value), whose payload ``TopK`` shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire import _native
from thinwire.codec.arena import encode_anew
from thinwire.codec.base import Payload, accepted, finite


@dataclass(frozen=True, slots=True)
class Nonzero:
    """Every non-zero element, exactly: for tensors that are sparse already.

    Payload, little-endian, shared with ``TopK``:
      entries u32     how many entries follow, fillers included
      indices u8      0: 16-bit gaps; 1 + r: Rice code with parameter r, 0 <= r <= 30
      values u8       0: float32, 1: float16, 2: int8 (never with 16-bit gaps)
      exponent i16    float16 values are multiplied by 2^exponent; 0 for the others
      values          float32[entries]; or float16[entries]; or a float32 scale for every 256
                      entries and then int8[entries], meaning code / 127 of the scale
      index stream    to the end of the payload
    The gap of an entry is the number of elements skipped since the one before. 16-bit gaps: one
    u16 per entry; a gap of 65535 with the value 0 is a filler that skips 65536 elements. Rice: gap
    >> r zero bits, a one bit, the r low bits of the gap, first bit highest, padded with zero bits.
    The encoder takes the shorter. Values are finite and, but for fillers, not zero.
    """

    name: ClassVar[str] = "nonzero"
    wire_id: ClassVar[int] = 6
    sparse: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return encode_anew(self, x, seed=seed)

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        del seed  # nothing here is random
        return finite(_native.nonzero_encode(x, out), self.name)

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        accepted(_native.sparse_decode(payload, out), "nonzero", out.numel())

    @staticmethod
    def check(payload: Payload, numel: int) -> None:
        accepted(_native.sparse_check(payload, numel), "nonzero", numel)

    @staticmethod
    def add(payload: Payload, out: Tensor, *, weight: float) -> None:
        accepted(_native.sparse_add(payload, out, weight), "nonzero", out.numel())

    @staticmethod
    def sum(payloads: Sequence[Payload], out: Tensor, *, weight: float) -> None:
        accepted(_native.sparse_sum(payloads, weight, out), "nonzero", out.numel())

    def max_nbytes(self, numel: int) -> int:
        return _native.sparse_max_nbytes(numel, numel, _native.Values.FLOAT32)
