"""What payloads must be and mean, by the oracle of each codec."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

import thinwire as tw
from tests.cases import CODECS
from tests.reference import chunk_topk, dither, half, onebit, sparse
from thinwire.codec.base import Codec

DETERMINED = [codec for codec in CODECS if not isinstance(codec, tw.RandomK)]
"""Codecs whose payload an oracle can tell."""


def expected_payload(codec: Codec, x: Tensor, *, seed: int, payload: bytes) -> bytes:
    """The payload by the oracle; scales, whose last bit depends on the order of a sum, as found."""
    values = x.numpy()
    match codec:
        case tw.Float32():
            return values.astype("<f4").tobytes()
        case tw.Float16():
            return half.encode_float16(values)
        case tw.BFloat16():
            return half.encode_bfloat16(values)
        case tw.OneBit():
            expected = onebit.encode(values, codec.scale, codec.block, codec.stretch)
            return with_scales_of(payload, expected, x)
        case tw.TopK():
            kept = sparse.largest(values, math.ceil(codec.ratio * len(values)))
            return sparse.encode(values, kept, codec.values)
        case tw.ChunkTopK():
            return chunk_topk.encode(values, codec.ratio, codec.bits)
        case tw.Nonzero():
            return sparse.encode(values, sparse.largest(values, len(values)))
        case tw.Dither():
            return dithered(codec, values, seed, payload)
    raise NotImplementedError(codec)


def with_scales_of(payload: bytes, expected: bytes, x: Tensor) -> bytes:
    """``expected`` with the scales of ``payload``, if these are right to seven digits."""
    count = (len(expected) - len(onebit.encode(x.numpy()))) // 4 + 1 if x.numel() else 0
    found = np.frombuffer(payload, "<f4", count, 8)
    right = np.frombuffer(expected, "<f4", count, 8)
    np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-44)
    return expected[:8] + found.tobytes() + expected[8 + 4 * count :]


def dithered(codec: tw.Dither, values: half.Floats, seed: int, payload: bytes) -> bytes:
    scale = np.frombuffer(payload, "<f4", 1)[0]
    np.testing.assert_allclose(scale, dither.scale_of(values, codec.norm), rtol=1e-6)
    return dither.encode(values, codec.bits, codec.levels, codec.norm, seed, scale=scale)


def expected_tensor(codec: Codec, payload: bytes, numel: int) -> Tensor:
    match codec:
        case tw.Float32():
            values = np.frombuffer(payload, "<f4")
        case tw.Float16():
            values = half.decode_float16(payload)
        case tw.BFloat16():
            values = half.decode_bfloat16(payload)
        case tw.OneBit():
            values = onebit.decode(payload, numel)
        case tw.TopK() | tw.Nonzero():
            values = sparse.decode(payload, numel)
        case tw.ChunkTopK():
            values = chunk_topk.decode(payload, numel)
        case tw.Dither():
            values = dither.decode(payload, numel)
        case _:
            raise NotImplementedError(codec)
    return torch.from_numpy(values.copy())
