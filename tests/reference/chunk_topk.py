"""The largest elements of every chunk, in two or four bits, one element at a time."""

from __future__ import annotations

import math
import struct
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from tests.reference.bits import Stream, best_rice, pack, rice
from tests.reference.sparse import largest

Floats = NDArray[np.float32]
CHUNK = 4096
LEAST_NORMAL = np.float32(2.0**-126)
LEAST, MOST = 8, 8 * (127 + 100)
WIDTHS = [span if span <= 16 else 4 * span - 48 for span in range(32)]


def encode(x: Floats, ratio: float, bits: int) -> bytes:
    normal = np.where(np.abs(x) < LEAST_NORMAL, np.float32(0), x)
    indices: list[int] = []
    levels, codes = b"", []
    for begin in range(0, len(x), CHUNK):
        chunk = normal[begin : begin + CHUNK]
        kept = largest(chunk, math.ceil(ratio * len(chunk)))
        if kept:
            low, span = levels_for(np.abs(chunk[kept]), bits)
            levels += struct.pack("<H", low | span << 11)
            codes += [2 * j + int(v < 0) for j, v in _numbers(chunk[kept], low, span, bits)]
        indices += [begin + i for i in kept]
    gaps = [i - before - 1 for before, i in pairwise([-1, *indices])]
    parameter = best_rice(gaps)
    header = struct.pack("<IIBB", len(indices), len(levels) // 2, bits, parameter)
    stream = pack("".join(rice(gap, parameter) for gap in gaps))
    return header + levels + _packed(codes, bits) + stream


def _packed(codes: list[int], bits: int) -> bytes:
    number = sum(code << bits * i for i, code in enumerate(codes))
    return number.to_bytes(math.ceil(bits * len(codes) / 8), "little")


def levels_for(magnitudes: Floats, bits: int) -> tuple[int, int]:
    """The lowest level and the span up to the highest."""
    low, high = (magnitudes.min(), magnitudes.max()) if bits == 4 else _two_means(magnitudes)
    lowest, width = _nearest(low), _nearest(high) - _nearest(low)
    span = width if width <= 16 else min((width + 50) // 4, 31)
    while lowest + WIDTHS[span] > MOST:
        span -= 1
    return lowest, span


def _nearest(magnitude: np.float32) -> int:
    return min(max((_bits(magnitude) + (1 << 19)) >> 20, LEAST), MOST)


def _bits(value: np.float32) -> int:
    return int(np.float32(value).view(np.uint32))


def _two_means(magnitudes: Floats) -> tuple[np.float32, np.float32]:
    """Lloyd's iteration from the mean on, three rounds of it."""
    mean = _mean(magnitudes, np.ones(len(magnitudes), bool))
    split, means = mean, (mean, mean)
    for _ in range(3):
        above = magnitudes >= split
        if above.all() or not above.any():
            return mean, mean
        means = _mean(magnitudes, ~above), _mean(magnitudes, above)
        split = means[0] * np.float32(0.5) + means[1] * np.float32(0.5)
    return means


def _mean(magnitudes: Floats, chosen: NDArray[np.bool_]) -> np.float32:
    """Summed in sixteen floats, each of which takes every sixteenth, and these in double."""
    sums = np.zeros(16, np.float32)
    with np.errstate(over="ignore"):
        for i, value in enumerate(magnitudes):
            sums[i % 16] += value if chosen[i] else np.float32(0)
    total = 0.0
    for part in sums:
        total += float(part)
    return np.float32(total / int(chosen.sum()))


def _level(low: int, span: int, number: int, top: int) -> np.float32:
    bits = (low << 20) + (WIDTHS[span] << 20) * number // top
    return np.uint32(bits).view(np.float32)


def _numbers(kept: Floats, low: int, span: int, bits: int) -> list[tuple[int, np.float32]]:
    """The number of the level of each value; the least has the lowest, the largest the highest."""
    top = (1 << (bits - 1)) - 1
    least, most = _bits(np.abs(kept).min()), _bits(np.abs(kept).max())
    bounds = []
    for j in range(top if span else 0):
        a, b = _level(low, span, j, top), _level(low, span, j + 1, top)
        middle = _bits(a * np.float32(0.5) + b * np.float32(0.5))
        bounds.append(least + 1 if middle <= least else min(middle, most))
    return [(sum(_bits(np.abs(value)) >= bound for bound in bounds), value) for value in kept]


def decode(payload: bytes, n: int) -> Floats:
    entries, chunks, bits, parameter = struct.unpack_from("<IIBB", payload)
    levels = struct.unpack_from(f"<{chunks}H", payload, 10)
    begin, end = 10 + 2 * chunks, 10 + 2 * chunks + math.ceil(bits * entries / 8)
    codes = int.from_bytes(payload[begin:end], "little")
    stream, position, indices = Stream(payload[end:]), -1, []
    for _ in range(entries):
        position += stream.rice(parameter) + 1
        indices.append(position)
    out, top = np.zeros(n, np.float32), (1 << (bits - 1)) - 1
    groups = groupby(enumerate(indices), key=lambda entry: entry[1] // CHUNK)
    for (_, group), word in zip(groups, levels, strict=True):
        for i, index in group:
            code = codes >> bits * i & ((1 << bits) - 1)
            level = _level(word & 2047, word >> 11, code >> 1, top)
            out[index] = -level if code & 1 else level
    return out
