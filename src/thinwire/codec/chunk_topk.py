"""``ChunkTopK``: the elements of largest magnitude in every chunk, in two or four bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire import _native
from thinwire.checks import check_choice, check_ratio
from thinwire.codec.arena import encode_anew
from thinwire.codec.base import Payload, accepted, finite

CHUNK = 4096
"""Elements in a chunk; the last one of a tensor may be shorter."""

_BITS = {"2bit": 2, "4bit": 4}


@dataclass(frozen=True, slots=True)
class ChunkTopK:
    """Keep the elements of largest magnitude in every 4,096 that follow each other.

    Of each chunk exactly ``ratio``, rounded up, the lower index first among equals; fewer only
    where fewer are not zero. At 1/64 a kept element takes 9.8 bits, its place included. Biased, so
    pair it with ``Residual``.

    ``values`` is how kept values travel: "2bit", a sign and one of two magnitudes that fit the
    chunk best, or "4bit", a sign and one of eight between the smallest and the largest kept.

    Payload, little-endian:
      entries u32    how many elements follow
      chunks u32     how many chunks have some
      bits u8        of an entry: 2 or 4
      rice u8        the parameter of the index stream, the shortest: 0 to 30
      levels u16[]   of each such chunk: the low 11 bits are bits 20 to 30 of the lowest level, a
                     float32 from 2^-126 to 2^100; the others, s, say that the highest has w = s (or
                     4 s - 48 above 16) more in these bits, and is at most 2^100 too. Of m + 1
                     levels, level j has the bits of the lowest plus floor(2^20 w j / m).
      codes          ``bits`` for each entry, from the low bits of a byte on: 1 if it is negative,
                     plus twice the number of its level
      index stream   Rice code of the gaps, as in ``Nonzero``, to the end of the payload
    Unused bits are zero. Where s is 0 all have the lowest level; else the lowest and the highest
    are both in use. Elements below 2^-126 count as zeros.
    """

    ratio: float = 1 / 64
    values: str = "2bit"

    name: ClassVar[str] = "chunktopk"
    wire_id: ClassVar[int] = 9
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ratio(self.ratio, owner="ChunkTopK")
        check_choice(self.values, tuple(_BITS), owner="ChunkTopK", field="values")

    @property
    def bits(self) -> int:
        """Of a kept value."""
        return _BITS[self.values]

    def kept(self, numel: int) -> int:
        """How many of ``numel`` elements are kept at most."""
        whole, rest = divmod(numel, CHUNK)
        return whole * math.ceil(self.ratio * CHUNK) + math.ceil(self.ratio * rest)

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return encode_anew(self, x, seed=seed)

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        del seed  # nothing here is random
        return finite(_native.chunk_topk_encode(x, self.ratio, self.bits, out), self.name)

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        accepted(_native.chunk_topk_decode(payload, out), "chunktopk", out.numel())

    @staticmethod
    def check(payload: Payload, numel: int) -> None:
        accepted(_native.chunk_topk_check(payload, numel), "chunktopk", numel)

    @staticmethod
    def add(payload: Payload, out: Tensor, *, weight: float) -> None:
        accepted(_native.chunk_topk_add(payload, out, weight), "chunktopk", out.numel())

    @staticmethod
    def sum(payloads: Sequence[Payload], out: Tensor, *, weight: float) -> None:
        accepted(_native.chunk_topk_sum(payloads, weight, out), "chunktopk", out.numel())

    def max_nbytes(self, numel: int) -> int:
        return _native.chunk_topk_max_nbytes(numel, self.ratio, self.bits)
