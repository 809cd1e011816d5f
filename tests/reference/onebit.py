"""One bit per element, one element at a time."""

from __future__ import annotations

import math
import struct

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
RUN = 64
LARGEST = 2.0**100


def encode(x: Floats, scale: str = "l1", block: int | None = None, stretch: float = 1.0) -> bytes:
    """Sums are exact and rounded once, so scales may differ in the last bit from sums of floats."""
    n = len(x)
    block = 0 if block is None or block >= n else block
    zero_runs = [not x[i : i + RUN].any() for i in range(0, n, RUN)]
    parts = [x[i : i + (block or n)] for i in range(0, n, block or max(n, 1))]
    scales = [min(stretch * _mean(part, scale), LARGEST) for part in parts]
    signs = bytearray((n + 7) // 8)
    for i, value in enumerate(x):
        signs[i // 8] |= int(value < 0) << i % 8
    payload = struct.pack("<II", block, sum(zero_runs))
    payload += struct.pack(f"<{len(scales)}f", *scales) + bytes(signs)
    return payload + (_bitmap(zero_runs) if any(zero_runs) else b"")


def _mean(part: Floats, scale: str) -> float:
    """Mean magnitude, or root mean square, of the elements in runs that are not all zeros."""
    runs = [part[i : i + RUN] for i in range(0, len(part), RUN)]
    live = [float(value) for run in runs if run.any() for value in run]
    if not live:
        return 0.0
    if scale == "l1":
        return math.fsum(abs(value) for value in live) / len(live)
    return math.sqrt(math.fsum(value * value for value in live) / len(live))


def _bitmap(flags: list[bool]) -> bytes:
    bitmap = bytearray((len(flags) + 7) // 8)
    for i, flag in enumerate(flags):
        bitmap[i // 8] |= flag << i % 8
    return bytes(bitmap)


def decode(payload: bytes, n: int) -> Floats:
    block, zero_runs = struct.unpack_from("<II", payload)
    count = 0 if n == 0 else math.ceil(n / block) if block else 1
    scales = np.frombuffer(payload, "<f4", count, 8)
    signs = payload[8 + 4 * count :]
    zero_map = signs[(n + 7) // 8 :]
    out = np.zeros(n, np.float32)
    for i in range(n):
        if zero_runs and zero_map[i // RUN // 8] >> i // RUN % 8 & 1:
            continue
        scale = scales[i // block if block else 0]
        out[i] = -scale if signs[i // 8] >> i % 8 & 1 else scale
    return out
