"""Dithering, one element at a time. Its chance is a counter, mixed; see ``random_bits``."""

from __future__ import annotations

import math
import struct

import numpy as np
from numpy.typing import NDArray

from tests.reference.bits import Stream, elias_delta, pack

Floats = NDArray[np.float32]
RUN = 64
MASK32, MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
LEVELS, NORMS = ("linear", "natural"), ("max", "l2")
ONE = np.float32(1)


def keys(seed: int) -> tuple[int, int]:
    """The two halves of the seed, mixed as splitmix64 does."""
    x = (seed + 0x9E3779B97F4A7C15) & MASK64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK64
    x ^= x >> 31
    return x & MASK32, x >> 32


def random_bits(seed: int, i: int) -> int:
    """32 bits for element i. Elements 16 apart share a counter and see its halves exchanged."""
    first, second = keys(seed)
    run, quarter, lane = i // RUN * RUN, i % RUN // 16, i % 16
    x = (run // 2 + 8 * (quarter & ~1) + lane + first) & MASK32
    x ^= x >> 16
    x = x * 0x7FEB352D & MASK32
    x ^= x >> 15 ^ second
    x = x * 0x846CA68B & MASK32
    x ^= x >> 16
    return (x << 16 | x >> 16) & MASK32 if quarter % 2 else x


def top_level(bits: int) -> int:
    return 1 if bits == 1 else 2 ** (bits - 1) - 1


def scale_of(x: Floats, norm: str) -> np.float32:
    """The norm; 0 below 2^-100, and 2^126 above that."""
    size = max((abs(float(v)) for v in x), default=0.0)
    if norm == "l2":
        size = math.sqrt(math.fsum(float(v) ** 2 for v in x))
    return np.float32(0.0 if size < 2.0**-100 else min(size, 2.0**126))


def codes_of(x: Floats, scale: np.float32, bits: int, levels: str, seed: int) -> list[int]:
    if scale == 0:
        return [0] * len(x)
    linear = levels == "linear" and bits > 1
    inverse = _inverse(scale, np.float32(top_level(bits) if linear else 1))
    rule = _one_bit if bits == 1 else _linear if linear else _natural
    return [rule(v, inverse, bits, random_bits(seed, i)) for i, v in enumerate(x)]


def _inverse(scale: np.float32, top: np.float32) -> np.float32:
    inverse = top / scale
    return np.nextafter(inverse, np.float32(np.inf)) if scale * inverse < top else inverse


def _uniform(random: int) -> np.float32:
    return np.float32(random >> 8) * np.float32(2.0**-24)


def _one_bit(value: np.float32, inverse: np.float32, bits: int, random: int) -> int:
    share = (value * inverse + ONE) * np.float32(0.5)
    return 0 if _uniform(random) < share else -1


def _linear(value: np.float32, inverse: np.float32, bits: int, random: int) -> int:
    top = top_level(bits)
    # Not so near to one that the sum is rounded up to the next level.
    share = min(_uniform(random), ONE - np.float32(2.0**-16))
    raised = value * inverse + share
    return math.floor(max(min(float(raised), top + 0.5), -top))


def _natural(value: np.float32, inverse: np.float32, bits: int, random: int) -> int:
    """Up to the next power of two with the probability that makes the mean right."""
    s = top_level(bits)
    share = min(abs(value) * inverse, ONE)
    if share < np.float32(2.0 ** (1 - s)):
        level = int(_uniform(random) < share * np.float32(2.0 ** (s - 1)))
    else:
        raised = int(share.view(np.uint32)) + (random & 0x7FFFFF)
        level = (raised >> 23) - (127 - s)
    return -level if value < 0 else level


def encode(
    x: Floats, bits: int, levels: str, norm: str, seed: int, scale: np.float32 | None = None
) -> bytes:
    scale = scale_of(x, norm) if scale is None else scale
    codes = codes_of(x, scale, bits, levels, seed)
    header = struct.pack("<fBBBB", scale, bits, LEVELS.index(levels), NORMS.index(norm), 0)
    return header + (_planes(codes, bits) if norm == "max" else _stream(codes))


def _planes(codes: list[int], bits: int) -> bytes:
    out = b""
    for start in range(0, len(codes), RUN):
        run = codes[start : start + RUN]
        for bit in range(bits):
            plane = sum((code >> bit & 1) << i for i, code in enumerate(run))
            out += plane.to_bytes((len(run) + 7) // 8, "little")
    return out


def _stream(codes: list[int]) -> bytes:
    bits, before, count = "", -1, 0
    for i, code in enumerate(codes):
        if code:
            bits += elias_delta(i - before) + ("1" if code < 0 else "0") + elias_delta(abs(code))
            before, count = i, count + 1
    return struct.pack("<I", count) + pack(bits)


def decode(payload: bytes, n: int) -> Floats:
    scale, bits, levels, norm, _ = struct.unpack_from("<fBBBB", payload)
    codes = _read_stream(payload[8:], n) if norm else _read_planes(payload[8:], n, bits)
    values = [value_of(code, np.float32(scale), bits, LEVELS[levels]) for code in codes]
    return np.array(values, np.float32)


def value_of(code: int, scale: np.float32, bits: int, levels: str) -> np.float32:
    if bits == 1:
        return -scale if code else scale
    if levels == "linear":
        return np.float32(code) * (scale / np.float32(top_level(bits)))
    power = np.float32(2.0 ** (abs(code) - top_level(bits))) if code else np.float32(0)
    return -(power * scale) if code < 0 else power * scale


def _read_planes(data: bytes, n: int, bits: int) -> list[int]:
    codes, at = [], 0
    for start in range(0, n, RUN):
        count = min(RUN, n - start)
        stride = (count + 7) // 8
        planes = [data[at + b * stride : at + (b + 1) * stride] for b in range(bits)]
        at += bits * stride
        for i in range(count):
            code = sum((plane[i // 8] >> i % 8 & 1) << b for b, plane in enumerate(planes))
            codes.append(code - 2**bits if code >> (bits - 1) else code)
    return codes


def _read_stream(data: bytes, n: int) -> list[int]:
    codes, at, stream = [0] * n, -1, Stream(data[4:])
    for _ in range(struct.unpack_from("<I", data)[0]):
        at += stream.elias_delta()
        negative = stream.take(1)
        codes[at] = -stream.elias_delta() if negative else stream.elias_delta()
    return codes
