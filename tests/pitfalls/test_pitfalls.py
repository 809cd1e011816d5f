"""Mistakes found in public implementations, each under a number of its own.

Those that need several processes or a training loop are with the code that could make them.
"""

# ruff: noqa: N802 - a test begins with the number of its pitfall, as the pitfall is written

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from torch import Tensor

import thinwire as tw
from tests.cases import decoded, same_bits
from tests.cluster import Cluster, carried, random_gradients
from tests.reference import onebit
from thinwire.codec.base import Codec
from thinwire.gradient.steps import StepInfo
from thinwire.testing.tensors import make


def entries_of(payload: bytes | bytearray | memoryview) -> int:
    """How many elements a top-k payload holds."""
    return int(struct.unpack_from("<I", payload)[0])


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_P1_identical_gradients_average_to_themselves(workers: int) -> None:
    gradient = make("normal", 100, seed=1)
    cluster = Cluster(tw.dense(), (100,), workers=workers)
    assert torch.equal(cluster.exchange([gradient] * workers, step=0), gradient)


def displaced(feedback: tw.Momentum, optimizer_momentum: float, *, steps: int, lr: float) -> float:
    """How far a parameter with the constant gradient 1 goes when everything is sent."""
    parameter = torch.nn.Parameter(torch.zeros(10, 10))
    recipe = tw.Recipe(tw.TopK(1.0), tw.chain(feedback, tw.Residual()))
    cluster = Cluster(recipe, (10, 10), workers=2)
    optimizer = tw.optim.SGD([parameter], lr=lr, momentum=optimizer_momentum)
    for step in range(steps):
        parameter.grad = cluster.exchange([torch.ones(10, 10)] * 2, step=step)
        optimizer.step()
    assert bool((parameter == parameter[0, 0]).all())
    return -float(parameter.detach()[0, 0])


@pytest.mark.parametrize("optimizer_momentum", [0.0, 0.9])
def test_P2_momentum_acts_once(optimizer_momentum: float) -> None:
    """Even where the optimizer was given momentum too: ours uses it for weight decay alone."""
    m, lr, steps = 0.9, 0.01, 100
    expected = lr * sum((1 - m**t) / (1 - m) for t in range(1, steps + 1))
    found = displaced(tw.Momentum(m, mask=False), optimizer_momentum, steps=steps, lr=lr)
    assert found == pytest.approx(expected, rel=1e-5)


def test_P3_masking_everything_is_plain_sgd_and_the_dense_bypass_is_not() -> None:
    lr, steps, m = 0.01, 50, 0.9
    assert displaced(tw.Momentum(m), 0.0, steps=steps, lr=lr) == pytest.approx(lr * steps, rel=1e-5)
    bypass = Cluster(tw.dgc(ratio=1.0, momentum=m), (10, 10), workers=2)
    moved = sum(
        float(bypass.exchange([torch.ones(10, 10)] * 2, step=step)[0, 0]) for step in range(steps)
    )
    expected = sum((1 - m**t) / (1 - m) for t in range(1, steps + 1))
    assert moved == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("codec", [tw.TopK(0.01), tw.OneBit(), tw.Float32()], ids=repr)
def test_P4_weight_decay_is_neither_compressed_nor_delayed(codec: Codec) -> None:
    lr, decay, workers, shape = 0.1, 0.05, 3, (16, 16)
    parameter = torch.nn.Parameter(torch.rand(shape) + 1)
    start = parameter.detach().double()
    cluster = Cluster(tw.Recipe(codec, tw.Residual(), codec, tw.Residual()), shape, workers=workers)
    optimizer = tw.optim.SGD([parameter], lr=lr, weight_decay=decay)
    for step in range(1, 40):
        parameter.grad = cluster.exchange([torch.zeros(shape)] * workers, step=step)
        optimizer.step()
        expected = start * (1 - lr * decay) ** step
        torch.testing.assert_close(parameter.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("codec", [tw.TopK(0.1, "float16"), tw.TopK(0.1, "int8"), tw.Float16()])
def test_P7_what_coarse_values_lose_stays_in_the_residual(codec: Codec) -> None:
    gradient = make("normal", 1000, seed=3)
    for fuse in (True, False):
        compressor = tw.Compressor(codec, tw.Residual(), fuse=fuse)
        received = carried(compressor.compress("w", gradient, step=0)).decode()
        lost = (gradient - received)[received != 0]
        assert float(lost.abs().max()) > 0  # the coding does lose something
        left = compressor.state_dict()["w"]["residual"]
        assert torch.equal(left, gradient - received)


@pytest.mark.parametrize("levels", ["linear", "natural"])
@pytest.mark.parametrize("bits", [3, 5, 8])
def test_P8_the_residual_subtracts_values_not_codes(bits: int, levels: str) -> None:
    """max |e| < 2 scale; subtracting codes reached 400 times that."""
    compressor = tw.Compressor(tw.Dither(bits, levels), tw.Residual())
    for step in range(200):
        gradient = 0.01 * make("normal", 500, seed=step)
        payload = compressor.compress("w", gradient, step=step).payload
        scale = struct.unpack_from("<f", payload)[0]
        assert float(compressor.state_dict()["w"]["residual"].abs().max()) < 2 * scale


@pytest.mark.parametrize("codec", [tw.OneBit(), tw.TopK(0.05)], ids=repr)
def test_P10_an_inf_is_seen_by_all_and_kept_by_none(codec: Codec) -> None:
    cluster = Cluster(tw.doublesqueeze(codec), (200,), workers=3)
    before, poisoned, after = random_gradients(3, 3, (200,))
    cluster.exchange(before, step=0)
    poisoned[1][17] = math.inf
    states = [cluster.workers[1].state_dict()["w"], cluster.server.state_dict()["w"]]
    answer = cluster.exchange(poisoned, step=1)
    assert not answer.isfinite().all()
    for state, now in zip(states, [cluster.workers[1], cluster.server], strict=True):
        assert torch.equal(state["residual"], now.state_dict()["w"]["residual"])
    assert bool(cluster.exchange(after, step=2).isfinite().all())


def test_P10_one_inf_among_several_tensors_stops_all_of_them() -> None:
    compressor = tw.Compressor(tw.TopK(0.1), tw.chain(tw.Momentum(), tw.Residual()))
    compressor.compress_all({"a": torch.ones(20), "b": torch.ones(30)}, step=0)
    states = compressor.state_dict()
    sent = compressor.compress_all({"a": torch.ones(20), "b": torch.full((30,), math.nan)}, step=1)
    assert {encoded.wire_id for encoded in sent.values()} == {tw.Float32.wire_id}
    for name, state in compressor.state_dict().items():
        assert all(same_bits(buffer, states[name][key]) for key, buffer in state.items())


@pytest.mark.parametrize("d", [1, 7, 8, 9, 31, 33])
@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "plain"])
def test_P13_padding_is_not_counted(d: int, fuse: bool) -> None:
    """Over several steps, since padding that is zero at first may not stay so."""
    compressor = tw.Compressor(tw.OneBit(), tw.Residual(), fuse=fuse)
    residual = np.zeros(d, np.float32)
    for step in range(5):
        gradient = make("normal", d, seed=10 * d + step)
        wanted = residual + gradient.numpy()
        expected = onebit.decode(onebit.encode(wanted), d)
        received = compressor.compress("w", gradient, step=step).decode().numpy()
        np.testing.assert_allclose(received, expected, rtol=1e-6)
        residual = wanted - received


@pytest.mark.parametrize("block", [None, 64, 128])
def test_P14_rows_without_gradients_never_move(block: int | None) -> None:
    shape, workers = (9, 64), 2
    live = torch.tensor([1.0, 0, 0, 1, 0, 1, 1, 0, 0])[:, None]
    parameter = torch.nn.Parameter(torch.ones(shape))
    cluster = Cluster(tw.doublesqueeze(tw.OneBit(block=block)), shape, workers=workers)
    optimizer = tw.optim.SGD([parameter], lr=0.1)
    for step, gradients in enumerate(random_gradients(30, workers, shape)):
        parameter.grad = cluster.exchange([live * gradient for gradient in gradients], step=step)
        optimizer.step()
    assert bool((parameter[live[:, 0] == 0] == 1.0).all())
    assert not bool((parameter[live[:, 0] == 1] == 1.0).any())


@pytest.mark.parametrize("select", ["sampled", "exact"])
@pytest.mark.parametrize("numel", [10, 1000, 50_000])
def test_P15_a_zero_tensor_sends_nothing(numel: int, select: str) -> None:
    compressor = tw.Compressor(tw.TopK(0.1, select=select), tw.Residual())
    sent = compressor.compress("w", torch.zeros(numel), step=0)
    assert entries_of(sent.payload) == 0
    mostly_zero = torch.zeros(numel)
    mostly_zero[numel // 2] = 1e-30
    assert entries_of(compressor.compress("w", mostly_zero, step=1).payload) == 1


@pytest.mark.parametrize("select", ["sampled", "exact"])
def test_P16_selection_does_not_depend_on_the_place(select: str) -> None:
    """Chi-square over 16 stretches of the tensor; 37.7 is its 99.9 % point for 15 degrees."""
    numel, draws, stretches = 40_000, 40, 16
    codec = tw.TopK(0.005, select=select)
    counts = torch.zeros(stretches, dtype=torch.float64)
    for seed in range(draws):
        kept = decoded(codec, codec.encode(make("normal", numel, seed=seed), seed=0), numel)
        counts += (kept != 0).reshape(stretches, -1).sum(1)
    expected = float(counts.sum()) / stretches
    assert float(counts.sum()) == draws * 200
    assert float(((counts - expected) ** 2 / expected).sum()) < 37.7


@pytest.mark.parametrize("codec", [tw.TopK(1e-6), tw.Nonzero(), tw.TopK(1e-6, "int8")], ids=repr)
def test_P17_indices_beyond_2_to_the_24_are_exact(codec: Codec) -> None:
    numel = 2**24 + 3
    x = torch.zeros(numel)
    x[0], x[2**24 + 1], x[numel - 1] = 1.0, -1.0, 1.0
    payload = codec.encode(x, seed=0)
    assert torch.equal(decoded(codec, payload, numel), x)


def test_P18_compression_leaves_the_models_chance_alone() -> None:
    def drawn(codec: Codec | None) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            numbers = []
            for step in range(5):
                numbers.append(torch.rand(4))
                if codec is not None:
                    compressor = tw.Compressor(codec, tw.Residual(), seed=step)
                    compressor.compress("w", torch.ones(100), step=step)
            return torch.stack(numbers)

    for codec in (tw.RandomK(0.1), tw.Dither(2), tw.TopK(0.1)):
        assert torch.equal(drawn(codec), drawn(None))


def test_P18_ranks_agree_where_they_must_and_differ_where_they_must() -> None:
    x = make("normal", 2000, seed=1)

    def payloads(codec: Codec) -> set[bytes]:
        ranks = [tw.Compressor(codec, tw.NoFeedback(), seed=9, rank=rank) for rank in range(4)]
        for rank in ranks:  # what was compressed before plays no part
            rank.compress("other", x[: 10 * (ranks.index(rank) + 1)], step=0)
        return {bytes(rank.compress("w", x, step=5).payload) for rank in ranks}

    assert len(payloads(tw.RandomK(0.05))) == 1
    assert len(payloads(tw.Dither(3))) == 4


def test_P18_the_mean_over_seeds_is_the_tensor() -> None:
    x, seeds, ratio = make("normal", 128, seed=2), 4000, 1 / 32
    total = torch.zeros(128, dtype=torch.float64)
    for seed in range(seeds):
        total += decoded(tw.RandomK(ratio), tw.RandomK(ratio).encode(x, seed=seed), 128).double()
    sd = x.double().abs() * math.sqrt((1 / ratio - 1) / seeds)
    assert bool(((total / seeds / ratio - x).abs() <= 4 * sd).all())


def test_P22_receivers_read_the_ratio_from_the_payload() -> None:
    """A warm-up changes it at every step; nobody has to agree on the step to decode."""
    x = make("normal", 1000, seed=1)
    compressor = tw.Compressor(tw.warmup(tw.TopK(0.001), steps=8), tw.NoFeedback())
    for step, ratio in enumerate([0.25, 0.25, 0.0625, 0.0625, 0.015625, 0.015625]):
        sent = compressor.compress("w", x, step=step)
        kept = math.ceil(ratio * 1000)
        assert entries_of(sent.payload) == kept
        for receiver in (tw.TopK(1.0), tw.TopK(0.001, values="int8")):
            out = torch.empty(1000)
            receiver.decode(sent.payload, out)
            assert int((out != 0).sum()) == kept


@pytest.mark.parametrize("workers", [4, 16])
def test_P23_local_clipping_acts_as_often_as_global_clipping(workers: int) -> None:
    """Independent gradients with scales from 0.1 to 10 around what is clipped."""
    threshold, d, steps = 1.0, 2000, 300
    chance = torch.Generator().manual_seed(5)
    clip, acted_globally, acted_locally = tw.Clip(threshold), 0, 0
    for step in range(steps):
        size = 10 ** float(2 * torch.rand((), generator=chance) - 1) * math.sqrt(workers / d)
        gradients = size * torch.randn(workers, d, generator=chance)
        acted_globally += float(gradients.mean(0).norm()) > threshold
        for gradient in gradients:
            info = StepInfo(step, gradient_norm=float(gradient.norm()), workers=workers)
            acted_locally += clip.gain(gradient, info) < 1.0
    assert 0.3 < acted_globally / steps < 0.7  # the question is not trivial
    assert acted_locally / steps / workers == pytest.approx(acted_globally / steps, abs=0.03)


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("levels", ["linear", "natural"])
@pytest.mark.parametrize("numel", [1, 64, 100])
def test_P25_dithering_zero_is_zero(numel: int, levels: str, norm: str) -> None:
    for bits in range(2, 9):
        codec = tw.Dither(bits, levels, norm)
        found = decoded(codec, codec.encode(torch.zeros(numel), seed=1), numel)
        assert same_bits(found, torch.zeros(numel))
    assert not decoded(tw.Dither(1), tw.Dither(1).encode(torch.zeros(9), seed=1), 9).any()


@pytest.mark.parametrize("levels", ["linear", "natural"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_P27_the_largest_code_fits(bits: int, levels: str) -> None:
    codec = tw.Dither(bits, levels)
    for sign in (1.0, -1.0):
        x = make("normal", 200, seed=bits)
        x[77] = sign * 9.75
        for seed in range(20):
            found = decoded(codec, codec.encode(x, seed=seed), 200)
            assert float(found[77]) == pytest.approx(sign * 9.75, rel=1e-6)
            assert float(found.abs().max()) <= 9.75 * (1 + 1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_P29_small_updates_add_up(dtype: torch.dtype) -> None:
    """10 000 times 1e-4, never sent because another element is always larger."""
    compressor = tw.Compressor(tw.TopK(0.5), tw.Residual())
    gradient = torch.tensor([1e-4, 2.0]).to(dtype)
    for step in range(10_000):
        sent = compressor.compress("w", gradient, step=step).decode()
        assert float(sent[0]) == 0.0
    left = compressor.state_dict()["w"]["residual"]
    assert left.dtype == torch.float32
    assert float(left[0]) == pytest.approx(10_000 * float(gradient[0]), rel=1e-3)
