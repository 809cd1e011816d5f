"""C1: a payload is what the documentation says, byte for byte, and decodes to what it says.

The oracles in tests/reference are written from the docstrings, one element at a time.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import thinwire as tw
from tests.cases import CODECS, decoded, laws, same_bits, tensors
from tests.reference import dither, half, onebit, sparse
from thinwire import _native
from thinwire.codec.base import Codec
from thinwire.testing.tensors import SIZES, make

SEEDS = st.integers(0, 2**64 - 1)


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
            return with_scales_of(payload, onebit.encode(values, codec.scale, codec.block), x)
        case tw.TopK():
            kept = sparse.largest(values, math.ceil(codec.ratio * len(values)))
            return sparse.encode(values, kept, codec.values)
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
        case tw.Dither():
            values = dither.decode(payload, numel)
        case _:
            raise NotImplementedError(codec)
    return torch.from_numpy(values.copy())


DETERMINED = [codec for codec in CODECS if not isinstance(codec, tw.RandomK)]


@pytest.mark.parametrize("codec", DETERMINED, ids=repr)
@laws
@given(x=tensors(), seed=SEEDS)
def test_payload_and_its_meaning_are_the_documented_ones(
    codec: Codec, x: Tensor, seed: int
) -> None:
    payload = bytes(codec.encode(x, seed=seed))
    assert payload == expected_payload(codec, x, seed=seed, payload=payload)
    assert same_bits(decoded(codec, payload, x.numel()), expected_tensor(codec, payload, x.numel()))


@pytest.mark.parametrize("scale", ["l1", "l2"])
@pytest.mark.parametrize("block", [None, 64, 192])
@laws
@given(x=tensors())
def test_onebit_scales_are_exact_where_sums_are(scale: str, block: int | None, x: Tensor) -> None:
    whole = x.clamp(-1000, 1000).round()
    payload = tw.OneBit(scale, block).encode(whole, seed=0)
    assert bytes(payload) == onebit.encode(whole.numpy(), scale, block)


@laws
@given(x=tensors(), ratio=st.floats(0.001, 1.0), seed=SEEDS)
def test_randomk_sends_different_elements_of_the_tensor(x: Tensor, ratio: float, seed: int) -> None:
    payload = bytes(tw.RandomK(ratio).encode(x, seed=seed))
    found_seed, count = struct.unpack_from("<QI", payload)
    assert (found_seed, count) == (seed, math.ceil(ratio * x.numel()))
    indices = torch.empty(count, dtype=torch.int32)
    _native.random_indices(seed, x.numel(), indices)
    assert len(set(indices.tolist())) == count
    assert all(0 <= i < x.numel() for i in indices.tolist())
    assert payload[12:] == x[indices].numpy().astype("<f4").tobytes()
    expected = torch.zeros_like(x)
    expected[indices] = x[indices]
    assert same_bits(decoded(tw.RandomK(ratio), payload, x.numel()), expected)


NBYTES: dict[Codec, Callable[[int], int]] = {
    tw.Float32(): lambda d: 4 * d,
    tw.Float16(): lambda d: 2 * d,
    tw.BFloat16(): lambda d: 2 * d,
    tw.OneBit(): lambda d: 8 + 4 * (d > 0) + math.ceil(d / 8),
    tw.OneBit(block=64): lambda d: 8 + 4 * max(math.ceil(d / 64), d > 0) + math.ceil(d / 8),
    tw.RandomK(0.05): lambda d: 12 + 4 * math.ceil(0.05 * d),
    tw.Dither(1): lambda d: 8 + math.ceil(d / 8),
    tw.Dither(5): lambda d: 8 + 5 * math.ceil(d / 8),
    tw.Dither(8, levels="natural"): lambda d: 8 + 8 * math.ceil(d / 8),
}


@pytest.mark.parametrize("numel", [*SIZES, 4099 * 3 + 2])
@pytest.mark.parametrize("codec", NBYTES, ids=repr)
def test_size_is_the_formula_where_there_is_one(codec: Codec, numel: int) -> None:
    x = make("normal", numel, seed=1)
    assert len(codec.encode(x, seed=0)) == NBYTES[codec](numel)


@pytest.mark.parametrize("bits", [1, 3, 8])
@laws
@given(numel=st.integers(0, 300), seed=SEEDS)
def test_the_same_chance_wherever_the_run_is(bits: int, numel: int, seed: int) -> None:
    """A prefix gets the codes that it gets alone: chance depends on place and seed only."""
    x = make("normal", 320, seed=numel)
    x[0] = 10.0  # both have the same scale
    whole = decoded(tw.Dither(bits), tw.Dither(bits).encode(x, seed=seed), 320)
    prefix = x[: numel // 64 * 64 + 1].clone()
    alone = decoded(tw.Dither(bits), tw.Dither(bits).encode(prefix, seed=seed), len(prefix))
    assert same_bits(whole[: len(prefix)], alone)
