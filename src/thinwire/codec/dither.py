"""``Dither``: stochastic rounding to a few bits per element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire import _native
from thinwire.checks import check_choice
from thinwire.codec.arena import encode_anew
from thinwire.codec.base import Payload, accepted, finite
from thinwire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Dither:
    """Round every element to a few levels, up or down at random, so that the mean is exact.

    Unbiased: it needs no feedback. ``bits`` is what an element takes on the wire, sign included, 1
    to 8. There are s = 2^(bits - 1) - 1 levels above zero: "linear" ones at 1/s, 2/s, ... 1 of the
    scale, or "natural" ones at 1, 1/2, 1/4, ... of it. With one bit, the only levels are plus and
    minus the scale. ``norm`` is the scale: "max" (the largest magnitude; every element takes its
    bits) or "l2" (the Euclidean norm; most elements round to zero and only the others are sent, at
    least 2 bits).

    Payload, little-endian:
      scale f32    0, or between 2^-100 and 2^126
      bits u8, levels u8 (0 linear, 1 natural), norm u8 (0 max, 1 l2), zero u8
    then for "max", for every 64 elements (the last may be fewer), ``bits`` planes of a bit per
    element: bit i of plane b is bit b of element i's code, a two's complement number of ``bits``
    bits; for "l2", count u32 and for every non-zero code the Elias-delta code of the distance to
    the one before (the first: its index + 1), a sign bit and the Elias-delta code of the level,
    first bit highest. Unused bits are zero.
    """

    bits: int
    levels: str = "linear"
    norm: str = "max"

    name: ClassVar[str] = "dither"
    wire_id: ClassVar[int] = 8
    sparse: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice(self.levels, ("linear", "natural"), owner="Dither", field="levels")
        check_choice(self.norm, ("max", "l2"), owner="Dither", field="norm")
        fewest = 1 if self.norm == "max" else 2
        if not isinstance(self.bits, int) or not fewest <= self.bits <= 8:
            raise ConfigError(
                f"Dither: bits must be {fewest} to 8 with norm {self.norm!r}, got {self.bits}"
            )

    @property
    def _native_levels(self) -> _native.Levels:
        return _native.Levels.LINEAR if self.levels == "linear" else _native.Levels.NATURAL

    @property
    def _native_norm(self) -> _native.Norm:
        return _native.Norm.MAX if self.norm == "max" else _native.Norm.L2

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return encode_anew(self, x, seed=seed)

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        levels, norm = self._native_levels, self._native_norm
        return finite(_native.dither_encode(x, self.bits, levels, norm, seed, out), self.name)

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        accepted(_native.dither_decode(payload, out), "dither", out.numel())

    @staticmethod
    def add(payload: Payload, out: Tensor, *, weight: float) -> None:
        accepted(_native.dither_add(payload, out, weight), "dither", out.numel())

    def max_nbytes(self, numel: int) -> int:
        return _native.dither_max_nbytes(numel, self.bits, self._native_levels, self._native_norm)
