"""C1: a payload is what the documentation says, byte for byte, and decodes to what it says.

The oracles in tests/reference are written from the docstrings, one element at a time.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import thinwire as tw
from tests.cases import decoded, laws, same_bits, tensors
from tests.reference import onebit
from tests.reference.codecs import DETERMINED, expected_payload, expected_tensor
from thinwire import _native
from thinwire.codec.base import Codec
from thinwire.testing.tensors import SIZES, make

SEEDS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("codec", DETERMINED, ids=repr)
@laws
@given(x=tensors(), seed=SEEDS)
def test_payload_and_its_meaning_are_the_documented_ones(
    codec: Codec, x: Tensor, seed: int
) -> None:
    payload = bytes(codec.encode(x, seed=seed))
    assert payload == expected_payload(codec, x, seed=seed, payload=payload)
    assert same_bits(decoded(codec, payload, x.numel()), expected_tensor(codec, payload, x.numel()))


@pytest.mark.parametrize("kind", ["normal", "heavy-tailed", "huge", "row-sparse", "subnormal"])
@pytest.mark.parametrize("codec", [c for c in DETERMINED if isinstance(c, tw.ChunkTopK)], ids=repr)
def test_chunks_are_the_documented_ones(codec: Codec, kind: str) -> None:
    for numel in (4096, 4100, 12_345):
        x = make(kind, numel, seed=numel)
        x[4096 + 50 : 2 * 4096 + 90] = 0.0  # a chunk with few elements, and one with none
        payload = bytes(codec.encode(x, seed=0))
        assert payload == expected_payload(codec, x, seed=0, payload=payload)
        assert same_bits(decoded(codec, payload, numel), expected_tensor(codec, payload, numel))


@pytest.mark.parametrize("scale", ["l1", "l2"])
@pytest.mark.parametrize("block", [None, 64, 192])
@pytest.mark.parametrize("stretch", [1.0, 1.5])
@laws
@given(x=tensors())
def test_onebit_scales_are_exact_where_sums_are(
    scale: str, block: int | None, stretch: float, x: Tensor
) -> None:
    whole = x.clamp(-1000, 1000).round()
    payload = tw.OneBit(scale, block, stretch).encode(whole, seed=0)
    assert bytes(payload) == onebit.encode(whole.numpy(), scale, block, stretch)


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
