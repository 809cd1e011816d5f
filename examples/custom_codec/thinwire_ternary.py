"""TernGrad (Wen et al., 2017) for Thinwire: minus, zero or plus the largest magnitude."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire import CorruptPayloadError, NonFiniteError

_SCALE = struct.Struct("<f")
_PER_BYTE = 5  # 3 ** 5 = 243 fits in a byte
_POWERS = 3 ** np.arange(_PER_BYTE)


@dataclass(frozen=True, slots=True)
class Ternary:
    """Send each element as -scale, 0 or +scale, at random, so that the mean is exact.

    ``scale`` is the largest magnitude. About 20 times smaller than float32. Unbiased: it needs no
    feedback.

    Payload, little-endian:
      scale f32   finite, not negative; +0.0 only if every element is zero
      digits      a byte for every five elements, the first being the lowest digit in base 3:
                  0 zero, 1 plus, 2 minus; digits beyond the last element are 0
    """

    name: ClassVar[str] = "ternary"
    wire_id: ClassVar[int] = 0x8001  # private: 0x8000 and above
    sparse: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        values = x.numpy().astype(np.float64)
        scale = float(np.abs(values).max(initial=0.0))
        if not np.isfinite(scale):
            raise NonFiniteError("ternary: the tensor holds an inf or a nan")
        taken = np.random.default_rng(seed).random(len(values)) * scale < np.abs(values)
        digits = taken * np.where(values < 0, 2, 1)
        rows = np.pad(digits, (0, -len(digits) % _PER_BYTE)).reshape(-1, _PER_BYTE)
        return bytearray(_SCALE.pack(scale) + (rows @ _POWERS).astype(np.uint8).tobytes())

    @staticmethod
    def decode(payload: bytes | bytearray | memoryview, out: Tensor) -> None:
        scale, digits = _read(memoryview(payload).cast("B"), out.numel())
        levels = np.array([0.0, scale, -scale], np.float32)
        out.copy_(torch.from_numpy(levels[digits]))

    def max_nbytes(self, numel: int) -> int:
        return _SCALE.size + -(-numel // _PER_BYTE)


def _read(data: memoryview, numel: int) -> tuple[float, NDArray[np.int64]]:
    """The scale and the digits, once everything that no encoder writes is ruled out."""
    expected = _SCALE.size + -(-numel // _PER_BYTE)
    if len(data) != expected:
        raise CorruptPayloadError(f"ternary: {len(data)} bytes for {numel}, expected {expected}")
    (scale,) = _SCALE.unpack_from(data)
    if not 0.0 <= scale < float("inf") or np.signbit(scale):
        raise CorruptPayloadError(f"ternary: scale {scale}, expected a finite number from +0.0")
    packed = np.frombuffer(data, np.uint8, offset=_SCALE.size)
    if (packed >= 3**_PER_BYTE).any():
        raise CorruptPayloadError(f"ternary: a byte is {packed.max()}, expected 0 to 242")
    digits = (packed[:, None] // _POWERS % 3).reshape(-1)
    if digits[numel:].any():
        raise CorruptPayloadError("ternary: digits beyond the last element are not 0")
    if digits.any() != (scale > 0):
        raise CorruptPayloadError("ternary: the scale must be 0 just where every element is 0")
    return scale, digits[:numel].astype(np.int64)
