"""Results are the same bits for every instruction set and every number of threads."""

from __future__ import annotations

import pytest
import torch

import thinwire as tw
from tests.cases import CODECS, ISAS, decoded
from thinwire import _native
from thinwire.codec.base import Adding, Codec, Summing
from thinwire.feedback.base import Feedback
from thinwire.testing.tensors import make

pytestmark = pytest.mark.usefixtures("restored_kernels")

NUMEL = 3 * 131072 + 77
"""Three threads' worth of elements, and a tail."""

runnable = [
    pytest.param(
        isa, marks=pytest.mark.skipif(not _native.can_run(isa), reason=f"this CPU has no {isa}")
    )
    for isa in ISAS
]


def use(isa: str, threads: int) -> None:
    assert _native.set_isa(isa)
    assert _native.isa() == isa
    _native.set_threads(threads)


def results_of(codec: Codec, numel: int) -> list[bytes]:
    """Everything a codec computes on some tensors, as bytes."""
    found = []
    for kind in ("row-sparse", "half minus zero"):
        x = make(kind, numel, seed=numel)
        payload = codec.encode(x, seed=11)
        found += [bytes(payload), decoded(codec, payload, numel).numpy().tobytes()]
        if isinstance(codec, Summing):
            codec.sum([payload, payload], x, weight=0.3)
            found.append(x.numpy().tobytes())
        if isinstance(codec, Adding):
            codec.add(payload, x, weight=0.3)
            found.append(x.numpy().tobytes())
    return found


@pytest.mark.parametrize("isa", runnable)
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_every_tail_is_the_same(codec: Codec, isa: str) -> None:
    sizes = [*range(0, 70, 3), 127, 128, 129, 1023, 4099]
    use("scalar", 1)
    expected = [results_of(codec, numel) for numel in sizes]
    use(isa, 1)
    assert [results_of(codec, numel) for numel in sizes] == expected


LARGE: tuple[Codec, ...] = (
    tw.Float32(),
    tw.Float16(),
    tw.BFloat16(),
    tw.OneBit(),
    tw.OneBit("l2", block=192),
    tw.OneBit(block=4096),
    tw.OneBit(stretch=1.5),
    tw.TopK(0.001),
    tw.TopK(0.1, values="int8", select="exact"),
    tw.TopK(0.02, values="float16"),
    tw.ChunkTopK(),
    tw.ChunkTopK(1 / 256, values="4bit"),
    tw.Nonzero(),
    tw.RandomK(0.01),
    tw.Dither(1),
    tw.Dither(4),
    tw.Dither(3, levels="natural"),
    tw.Dither(8, norm="l2"),
)


@pytest.mark.parametrize("codec", LARGE, ids=repr)
def test_codecs_do_not_see_threads(codec: Codec) -> None:
    use("scalar", 1)
    expected = results_of(codec, NUMEL)
    for isa in filter(_native.can_run, ISAS):
        for threads in (1, 2, 3):
            use(isa, threads)
            assert results_of(codec, NUMEL) == expected, (isa, threads)


def steps_of(codec: Codec, feedback: Feedback) -> list[bytes]:
    """What a fused compressor sends in some steps, and its state afterwards, as bytes."""
    compressor = tw.Compressor(codec, feedback, workers=2)
    found = []
    for step, kind in enumerate(("normal", "row-sparse", "heavy-tailed")):
        gradient = make(kind, NUMEL, seed=step)
        rate = 0.1 / (step + 1)
        sent = compressor.compress_all({"w": gradient}, step=step, learning_rate=rate)
        found.append(bytes(sent["w"].payload))
    state = compressor.state_dict()["w"]
    return found + [state[key].numpy().tobytes() for key in sorted(state)]


FUSED: tuple[tuple[Codec, Feedback], ...] = (
    (tw.OneBit(), tw.Residual()),
    (tw.OneBit("l2", block=128), tw.chain(tw.Clip(1.0), tw.Residual(rescale=True))),
    (tw.TopK(0.001), tw.Residual()),
    (tw.TopK(0.05, values="int8", select="exact"), tw.chain(tw.Clip(1.0), tw.Residual())),
    (tw.ChunkTopK(), tw.Residual(decay=0.95)),
    (tw.ChunkTopK(1 / 16, "4bit"), tw.chain(tw.Clip(1.0), tw.Residual(rescale=True))),
    (tw.TopK(0.001), tw.chain(tw.Momentum(0.9), tw.Residual())),
    (tw.TopK(0.01, "float16"), tw.chain(tw.Momentum(0.9, nesterov=True), tw.Residual())),
    (tw.TopK(0.3), tw.chain(tw.Momentum(0.9, mask=False), tw.Residual(rescale=True))),
)


@pytest.mark.parametrize(("codec", "feedback"), FUSED, ids=repr)
def test_fused_steps_do_not_see_threads(codec: Codec, feedback: Feedback) -> None:
    use("scalar", 1)
    expected = steps_of(codec, feedback)
    for isa in filter(_native.can_run, ISAS):
        for threads in (1, 2, 3):
            use(isa, threads)
            assert steps_of(codec, feedback) == expected, (isa, threads)


def sum_of(codec: Codec) -> list[bytes]:
    """What a fused server answers, twice, and its state afterwards, as bytes."""
    server = tw.Compressor(codec, tw.Residual())
    piece = tw.Piece.whole(tw.Key("w", (NUMEL,)))
    found = []
    for step in range(2):
        payloads = [
            codec.encode(make(kind, NUMEL, seed=step), seed=0)
            for kind in ("normal", "row-sparse", "negative")
        ]
        pushes = [tw.Encoded(codec.wire_id, NUMEL, payload) for payload in payloads]
        found.append(bytes(server.compress_sum(piece, pushes, weight=1 / 3, step=step).payload))
    return [*found, server.state_dict()["w"]["residual"].numpy().tobytes()]


@pytest.mark.parametrize("codec", [tw.OneBit(), tw.OneBit(block=128), tw.TopK(0.01)], ids=repr)
def test_fused_sums_do_not_see_threads(codec: Codec) -> None:
    use("scalar", 1)
    expected = sum_of(codec)
    for isa in filter(_native.can_run, ISAS):
        for threads in (1, 2, 3):
            use(isa, threads)
            assert sum_of(codec) == expected, (isa, threads)


@pytest.mark.parametrize("kind", ["normal", "heavy-tailed", "huge", "subnormal"])
def test_reductions_do_not_see_threads(kind: str) -> None:
    x = make(kind, NUMEL, seed=1)
    reductions = (_native.sum_abs, _native.sum_squares, _native.max_abs, _native.all_finite)
    use("scalar", 1)
    expected = [reduce(x) for reduce in reductions]
    torch.testing.assert_close(expected[0], float(x.double().abs().sum()), rtol=1e-6, atol=0)
    torch.testing.assert_close(expected[1], float(x.double().square().sum()), rtol=1e-6, atol=0)
    assert expected[2] == float(x.abs().max())
    for isa in filter(_native.can_run, ISAS):
        for threads in (1, 2, 3):
            use(isa, threads)
            assert [reduce(x) for reduce in reductions] == expected, (isa, threads)
