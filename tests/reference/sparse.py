"""Lists of (index, value), and which are the k largest."""

from __future__ import annotations

import math
import struct
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tests.reference.bits import Stream, best_rice, pack, rice

Floats = NDArray[np.float32]
CODES = {"float32": 0, "float16": 1, "int8": 2}
BLOCK = 256
FILLER = 65535


def largest(x: Floats, k: int) -> list[int]:
    """Indices of the k largest magnitudes that are not zero, the lower index first among equals."""
    order = sorted(range(len(x)), key=lambda i: (-abs(float(x[i])), i))
    return sorted(i for i in order[:k] if x[i] != 0)


def encode(x: Floats, indices: list[int], values: str = "float32") -> bytes:
    kept = x[indices]
    gaps = [i - before - 1 for before, i in pairwise([-1, *indices])]
    parameter = best_rice(gaps)
    exponent = _exponent(kept) if values == "float16" else 0
    stream = pack("".join(rice(gap, parameter) for gap in gaps))
    coded, entries, coding = _values(kept, values, exponent), len(kept), 1 + parameter
    if values != "int8":
        width = {"float32": 4, "float16": 2}[values]
        filled, short = _with_fillers(gaps, coded, width)
        if len(short) + len(filled) < len(stream) + len(coded):
            coded, stream, entries, coding = filled, short, len(short) // 2, 0
    header = struct.pack("<IBBh", entries, coding, CODES[values], exponent)
    return header + coded + stream


def _exponent(kept: Floats) -> int:
    """What brings the largest magnitude into [2^14, 2^15)."""
    return math.frexp(max(abs(float(v)) for v in kept))[1] - 15 if len(kept) else 0


def _values(kept: Floats, values: str, exponent: int) -> bytes:
    if values == "float32":
        return kept.astype("<f4").tobytes()
    if values == "float16":
        return b"".join(_half(float(value), exponent) for value in kept)
    scales = [float(np.abs(kept[i : i + BLOCK]).max()) for i in range(0, len(kept), BLOCK)]
    codes = [_int8(float(value), scales[i // BLOCK]) for i, value in enumerate(kept)]
    return struct.pack(f"<{len(scales)}f", *scales) + struct.pack(f"{len(codes)}b", *codes)


def _half(value: float, exponent: int) -> bytes:
    """The nearest half, but neither zero nor 2^15, which would need another exponent."""
    half = np.float16(np.float32(math.ldexp(abs(value), -exponent)))
    bits = min(max(int(half.view(np.uint16)), 1), 0x77FF)
    return (bits | (0x8000 if value < 0 else 0)).to_bytes(2, "little")


def _int8(value: float, scale: float) -> int:
    """The nearest code, ties to even, but never zero."""
    return round(value / scale * 127) or (1 if value > 0 else -1)


def _with_fillers(gaps: list[int], coded: bytes, width: int) -> tuple[bytes, bytes]:
    """Values and 16-bit gaps, with a filler for every 65536 elements skipped."""
    values, short = b"", b""
    for i, gap in enumerate(gaps):
        while gap > FILLER:
            values += bytes(width)
            short += struct.pack("<H", FILLER)
            gap -= FILLER + 1
        values += coded[width * i : width * (i + 1)]
        short += struct.pack("<H", gap)
    return values, short


def decode(payload: bytes, n: int) -> Floats:
    entries, coding, code, exponent = struct.unpack_from("<IBBh", payload)
    values, stream = _read_values(payload[8:], entries, code, exponent)
    out, position = np.zeros(n, np.float32), 0
    bits = Stream(stream) if coding else None
    for i in range(entries):
        gap = bits.rice(coding - 1) if bits else struct.unpack_from("<H", stream, 2 * i)[0]
        position += gap + 1
        if values[i] != 0:
            out[position - 1] = values[i]
    return out


def _read_values(data: bytes, entries: int, code: int, exponent: int) -> tuple[Floats, bytes]:
    if code == CODES["float32"]:
        return np.frombuffer(data, "<f4", entries), data[4 * entries :]
    if code == CODES["float16"]:
        halves = np.frombuffer(data, "<f2", entries).astype(np.float64)
        return np.ldexp(halves, exponent).astype(np.float32), data[2 * entries :]
    count = math.ceil(entries / BLOCK)
    scales = np.frombuffer(data, "<f4", count).astype(np.float64)
    codes = np.frombuffer(data, np.int8, entries, 4 * count).astype(np.float64)
    values = codes * scales.repeat(BLOCK)[:entries] / 127
    return values.astype(np.float32), data[4 * count + entries :]
