"""Sixteen bits per element, by numpy's own conversion and by integer arithmetic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def encode_float16(x: Floats) -> bytes:
    """Round to nearest even; what is too large becomes the largest."""
    return np.clip(x, -65504, 65504).astype("<f2").tobytes()


def decode_float16(payload: bytes) -> Floats:
    return np.frombuffer(payload, "<f2").astype(np.float32)


def encode_bfloat16(x: Floats) -> bytes:
    return b"".join(_to_bfloat16(int(bits)).to_bytes(2, "little") for bits in x.view(np.uint32))


def _to_bfloat16(bits: int) -> int:
    sign, magnitude = bits & 0x80000000, bits & 0x7FFFFFFF
    upper, lower = magnitude >> 16, magnitude & 0xFFFF
    if lower > 0x8000 or (lower == 0x8000 and upper % 2 == 1):
        upper += 1
    return sign >> 16 | min(upper, 0x7F7F)  # 0x7f80 is inf


def decode_bfloat16(payload: bytes) -> Floats:
    upper = np.frombuffer(payload, "<u2").astype(np.uint32)
    return (upper << 16).view(np.float32)
