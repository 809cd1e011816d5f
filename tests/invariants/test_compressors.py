"""Laws of compressors, each under a number of its own."""

# ruff: noqa: N802 - a test begins with the number of its law, as the law is written

from __future__ import annotations

import math
import struct
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

import thinwire as tw
from tests.cases import decoded, same_bits
from tests.reference import sparse
from tests.reference.bits import Stream, elias_delta, pack
from tests.reference.codecs import DETERMINED, expected_payload, expected_tensor
from tests.reference.dither import top_level
from thinwire import _native
from thinwire.codec.base import Codec
from thinwire.testing.tensors import make

SIZES = (0, 1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 4096, 4099)


def compressed(codec: Codec, x: Tensor, *, seed: int = 0) -> Tensor:
    return decoded(codec, codec.encode(x, seed=seed), x.numel())


def square(x: Tensor) -> float:
    return float(x.double().square().sum())


@pytest.mark.parametrize("numel", SIZES)
def test_C1_decoding_gives_what_the_definition_says(numel: int) -> None:
    x = make("normal", numel, seed=numel)
    for codec in DETERMINED:
        payload = bytes(codec.encode(x, seed=3))
        assert payload == expected_payload(codec, x, seed=3, payload=payload)
        assert len(payload) <= codec.max_nbytes(numel)
        found = decoded(codec, payload, numel)
        assert same_bits(found, expected_tensor(codec, payload, numel))


@pytest.mark.parametrize("kind", ["normal", "heavy-tailed", "one-hot", "constant", "negative"])
@pytest.mark.parametrize("numel", [1, 9, 64, 4099])
def test_C2_one_bit_errors_are_the_formulas(kind: str, numel: int) -> None:
    x = make(kind, numel, seed=numel)
    live = x if kind != "one-hot" else x[(numel - 1) // 64 * 64 :]  # runs of zeros cost nothing
    norm, sum_abs, d = square(x), float(x.double().abs().sum()), live.numel()
    r = sum_abs / math.sqrt(d * norm)
    error_l1 = square(compressed(tw.OneBit("l1"), x) - x)
    error_l2 = square(compressed(tw.OneBit("l2"), x) - x)
    assert error_l1 == pytest.approx(norm - sum_abs**2 / d, rel=1e-5, abs=1e-5 * norm)
    assert error_l2 == pytest.approx((2 - 2 * r) * norm, rel=1e-5, abs=1e-5 * norm)


@pytest.mark.parametrize("kind", ["normal", "heavy-tailed", "constant", "row-sparse", "zero"])
@pytest.mark.parametrize("select", ["sampled", "exact"])
@pytest.mark.parametrize("numel", [1, 65, 4099, 100_003])
def test_C3_topk_keeps_exactly_the_k_largest(kind: str, select: str, numel: int) -> None:
    x = make(kind, numel, seed=1)
    k = math.ceil(0.01 * numel)
    kept = compressed(tw.TopK(0.01, select=select), x)
    taken = kept != 0
    assert int(taken.sum()) == min(k, int((x != 0).sum()))
    assert torch.equal(kept[taken], x[taken])
    if bool(taken.any()) and not bool(taken.all()):
        assert x[taken].abs().min() >= x[~taken].abs().max()
    assert square(kept - x) <= (1 - k / numel) * square(x) * (1 + 1e-6)


def test_C4_randomk_agrees_across_ranks_and_changes_with_the_step() -> None:
    x = torch.arange(1.0, 1001.0)
    ranks = [tw.Compressor(tw.RandomK(0.05), tw.NoFeedback(), rank=rank) for rank in range(3)]
    kept = [[rank.compress("w", x, step=step).decode() for rank in ranks] for step in range(5)]
    for of_step in kept:
        assert all(torch.equal(of_step[0], other) for other in of_step)
        assert int((of_step[0] != 0).sum()) == 50  # no repeats
    assert len({tuple(of_step[0].tolist()) for of_step in kept}) == 5


def test_C4_randomk_scaled_by_its_ratio_is_right_on_average() -> None:
    x, seeds, ratio = torch.linspace(-1.0, 1.0, 200), 4000, 0.1
    total = torch.zeros(200, dtype=torch.float64)
    for seed in range(seeds):
        total += compressed(tw.RandomK(ratio), x, seed=seed) / ratio
    sd = x.double().abs() * math.sqrt((1 / ratio - 1) / seeds)
    assert bool(((total / seeds - x).abs() <= 4 * sd + 1e-6).all())


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("levels", ["linear", "natural"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_C5_dithering_is_unbiased(bits: int, levels: str, norm: str) -> None:
    if bits == 1 and norm == "l2":
        with pytest.raises(tw.ConfigError):
            tw.Dither(bits, levels, norm)
        return
    codec, seeds = tw.Dither(bits, levels, norm), 3000
    x = make("normal", 96, seed=bits)
    draws = torch.stack([compressed(codec, x, seed=seed) for seed in range(seeds)]).double()
    scale = struct.unpack_from("<f", codec.encode(x, seed=0))[0]
    low, high = neighbours(x.double() / scale, bits, levels)
    share = ((x.double() / scale - low) / (high - low)).clamp(0, 1)
    sd = scale * (high - low) * (share * (1 - share) / seeds).sqrt()
    assert bool(((draws.mean(0) - x).abs() <= 4 * sd + 1e-6 * scale).all())
    between = (draws >= scale * low - 1e-5 * scale) & (draws <= scale * high + 1e-5 * scale)
    assert bool(between.all())  # one of the two levels next to x, and never another
    if levels == "linear" and norm == "max" and bits > 1:
        assert float((draws - x).abs().max()) <= scale / top_level(bits) * (1 + 1e-5)


def neighbours(share: Tensor, bits: int, levels: str) -> tuple[Tensor, Tensor]:
    """The levels below and above each share of the scale."""
    s = top_level(bits)
    above = [2.0**-i for i in range(s)] if levels == "natural" else [i / s for i in range(1, s + 1)]
    zero = [] if bits == 1 else [0.0]
    grid = torch.tensor(sorted([-level for level in above] + zero + above), dtype=torch.float64)
    place = torch.searchsorted(grid, share.contiguous()).clamp(1, len(grid) - 1)
    return grid[place - 1], grid[place]


@pytest.mark.parametrize(
    "codec",
    [
        tw.OneBit(),
        tw.OneBit("l2", block=64),
        tw.TopK(0.1),
        tw.TopK(0.1, values="float16"),
        tw.TopK(0.1, values="int8"),
        tw.RandomK(0.1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("power", [-20, -1, 1, 30])
def test_C6_powers_of_two_pass_through(codec: Codec, power: int) -> None:
    x = make("normal", 1000, seed=4)
    factor = 2.0**power
    assert same_bits(compressed(codec, factor * x), factor * compressed(codec, x))


def test_C7_elias_delta_codes() -> None:
    published = {1: "1", 2: "0100", 4: "01100", 8: "00100000"}
    assert {value: elias_delta(value) for value in published} == published
    values = [*range(1, 3000), *(2**n + j for n in range(12, 31) for j in (-1, 0, 1)), 2**31 - 1]
    for value in values:
        n = value.bit_length() - 1
        assert len(elias_delta(value)) == n + 2 * int(math.log2(n + 1)) + 1
        assert Stream(pack(elias_delta(value))).elias_delta() == value
    words = sorted(elias_delta(value) for value in range(1, 3000))
    assert not any(b.startswith(a) for a, b in pairwise(words))  # prefix-free


@pytest.mark.parametrize("gap", [1, 2, 3, 4, 15, 16, 255, 256, 65535, 65536, 2**20, 2**23 + 5])
def test_C7_the_native_codes_are_the_same(gap: int) -> None:
    x = torch.zeros(gap + 3)
    x[gap - 1] = -2.5  # alone, it is the norm, and gets the top level
    payload = bytes(tw.Dither(4, norm="l2").encode(x, seed=0))
    assert payload[8:] == struct.pack("<I", 1) + pack(elias_delta(gap) + "1" + elias_delta(7))
    assert torch.equal(decoded(tw.Dither(4, norm="l2"), payload, gap + 3), x)


GAPS = [(0, 0), (65535, 0), (65536, 1), (131071, 1), (131072, 2), (200000, 3)]


@pytest.mark.parametrize(("gap", "fillers"), GAPS)
@pytest.mark.parametrize("trailing", [0, 100])
def test_C8_gaps_of_16_bits_have_fillers(gap: int, fillers: int, trailing: int) -> None:
    """Written by hand byte by byte, since the encoder prefers Rice for one entry."""
    entries = fillers + 1
    values = struct.pack(f"<{entries}f", *[0.0] * fillers, 1.5)
    last = gap - 65536 * fillers
    gaps = struct.pack(f"<{entries}H", *[65535] * fillers, last)
    payload = struct.pack("<IBBh", entries, 0, 0, 0) + values + gaps
    expected = torch.zeros(gap + 1 + trailing)
    expected[gap] = 1.5
    assert torch.equal(decoded(tw.Nonzero(), payload, expected.numel()), expected)


def test_C8_the_encoder_writes_fillers_where_gaps_of_16_bits_are_shorter() -> None:
    special = [(0, 0), (65535, 0), (65536, 1), (131072, 2)]
    gaps = [60_000] * 200 + [gap for gap, _ in special]  # Rice takes 17 bits for most of these
    indices = torch.tensor(gaps).cumsum(0) + torch.arange(len(gaps))
    x = torch.zeros(int(indices[-1]) + 100)
    x[indices] = torch.arange(1.0, len(gaps) + 1)
    for codec in (tw.Nonzero(), tw.TopK(0.0001, values="float16")):
        payload = bytes(codec.encode(x, seed=0))
        values = getattr(codec, "values", "float32")
        assert payload == sparse.encode(x.numpy(), indices.tolist(), values)
        entries, coding = struct.unpack_from("<IB", payload)
        assert (entries, coding) == (len(gaps) + sum(fillers for _, fillers in special), 0)
        assert torch.equal(decoded(codec, payload, x.numel()), x)


@pytest.mark.parametrize("codec", DETERMINED, ids=repr)
def test_C9_zero_stays_zero_and_inf_changes_no_state(codec: Codec) -> None:
    compressor = tw.Compressor(codec, tw.chain(tw.Momentum(), tw.Residual()))
    assert not compressor.compress("w", torch.zeros(300), step=0).decode().any()
    compressor.compress("w", make("normal", 300, seed=1), step=1)
    before = compressor.state_dict()["w"]
    for poison in (math.inf, -math.inf, math.nan):
        gradient = make("normal", 300, seed=2)
        gradient[299] = poison
        received = compressor.compress("w", gradient, step=2).decode()
        assert np.array_equal(received.numpy(), gradient.numpy(), equal_nan=True)
        after = compressor.state_dict()["w"]
        assert all(same_bits(before[key], after[key]) for key in before)


def test_C10_a_sampled_threshold_is_near_and_the_cut_exact() -> None:
    x, ratio = make("normal", 2**20, seed=1), 0.001
    k, magnitudes = math.ceil(ratio * x.numel()), x.abs().sort().values
    thresholds = torch.tensor([_native.sampled_threshold(x, ratio, seed) for seed in range(200)])
    relative = (x.numel() - torch.searchsorted(magnitudes, thresholds)) / k
    k_s = ratio * 2**20 / 128  # one in 128 elements is sampled
    assert float(relative.mean()) == pytest.approx(1.0, abs=0.15)
    assert 0.7 / math.sqrt(k_s) < float(relative.std()) < 1.4 / math.sqrt(k_s)
    assert 0.8 * k <= int((compressed(tw.TopK(ratio), x) != 0).sum()) <= k


@pytest.mark.parametrize("kind", ["heavy-tailed", "one-hot", "constant", "normal"])
@pytest.mark.parametrize(
    "codec", [tw.OneBit(), tw.OneBit(block=64), tw.TopK(0.01), tw.RandomK(0.01), tw.Float16()]
)
def test_C11_biased_codecs_contract(codec: Codec, kind: str) -> None:
    x = make(kind, 4096, seed=3)
    assert square(compressed(codec, x) - x) <= square(x) * (1 + 1e-6)


def test_C11_one_bit_with_the_l2_scale_does_not_always_contract() -> None:
    """As documented: (2 - 2 r) of the square, which for one element in a run of 64 is 1.75."""
    x = make("one-hot", 64, seed=0)
    error = square(compressed(tw.OneBit("l2"), x) - x)
    assert error == pytest.approx(2 - 2 / math.sqrt(64), rel=1e-6)
