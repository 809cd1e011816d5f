"""compressor.py: many named tensors, their state, and which gradients are taken at all."""

from __future__ import annotations

import io
import math

import pytest
import torch
from torch import Tensor

import thinwire as tw
from tests.cases import FEEDBACKS, same_bits
from thinwire.codec.base import Codec
from thinwire.feedback.base import Feedback, State
from thinwire.gradient.pieces import flatten
from thinwire.testing.tensors import make

DGC = tw.chain(tw.Momentum(0.9), tw.Residual())


def used(compressor: tw.Compressor, steps: int = 3) -> tw.Compressor:
    for step in range(steps):
        gradients = {"a": make("normal", 100, seed=step), "b": torch.ones(3, 5) * step}
        compressor.compress_all(gradients, step=step, learning_rate=0.1)
    return compressor


def same_state(one: dict[str, State], two: dict[str, State]) -> bool:
    return one.keys() == two.keys() and all(
        one[name].keys() == two[name].keys()
        and all(same_bits(buffer, two[name][key]) for key, buffer in one[name].items())
        for name in one
    )


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
def test_state_loads_with_weights_only(feedback: Feedback) -> None:
    compressor = used(tw.Compressor(tw.TopK(0.1), feedback))
    file = io.BytesIO()
    torch.save(compressor.state_dict(), file)
    file.seek(0)
    restored = tw.Compressor(tw.TopK(0.1), feedback)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert same_state(restored.state_dict(), compressor.state_dict())
    assert same_state(used(restored).state_dict(), used(compressor).state_dict())


@pytest.mark.parametrize("codec", [tw.OneBit(), tw.TopK(0.1)], ids=repr)
def test_a_state_dict_is_a_copy_both_ways(codec: Codec) -> None:
    compressor = used(tw.Compressor(codec, tw.Residual()))
    saved = compressor.state_dict()
    kept = {name: {key: b.clone() for key, b in state.items()} for name, state in saved.items()}
    other = tw.Compressor(codec, tw.Residual())
    other.load_state_dict(saved)
    used(compressor)
    used(other)
    assert same_state(saved, kept)


def test_buffers_that_the_feedback_does_not_keep_are_refused() -> None:
    saved = used(tw.Compressor(tw.TopK(0.1), DGC)).state_dict()
    with pytest.raises(
        tw.ConfigError, match=r"state of 'a' holds .*velocity.* keeps \['residual'\]"
    ):
        tw.Compressor(tw.TopK(0.1), tw.Residual()).load_state_dict(saved)
    with pytest.raises(tw.ConfigError, match="state of 'a' holds"):
        tw.Compressor(tw.TopK(0.1), DGC).load_state_dict({"a": {"residual": torch.zeros(100)}})


def test_a_refused_state_changes_nothing() -> None:
    compressor = used(tw.Compressor(tw.TopK(0.1), DGC))
    before = compressor.state_dict()
    with pytest.raises(tw.ConfigError):
        compressor.load_state_dict({"a": before["a"], "b": {}})
    assert same_state(compressor.state_dict(), before)


def test_a_state_of_another_size_is_refused_when_it_is_used() -> None:
    compressor = tw.Compressor(tw.OneBit(), tw.Residual())
    compressor.load_state_dict({"a": {"residual": torch.zeros(5)}})
    with pytest.raises(tw.ConfigError, match=r"residual of 'a' has 5 elements.* has 100"):
        compressor.compress("a", torch.ones(100), step=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("codec", [tw.OneBit(), tw.TopK(0.1), tw.Float32()], ids=repr)
def test_other_precisions_are_taken_as_float32(codec: Codec, dtype: torch.dtype) -> None:
    gradient = make("normal", 200, seed=1).to(dtype)
    one, two = (tw.Compressor(codec, tw.Residual()) for _ in range(2))
    found = one.compress("w", gradient, step=0)
    expected = two.compress("w", gradient.to(torch.float32), step=0)
    assert found == expected
    assert one.state_dict()["w"]["residual"].dtype == torch.float32


@pytest.mark.parametrize("codec", [tw.OneBit(), tw.TopK(0.1), tw.Dither(4)], ids=repr)
def test_strides_do_not_matter(codec: Codec) -> None:
    whole = torch.arange(600.0).reshape(20, 30).sin()
    for view in (whole.T, whole[::2], whole[:, 1::3], whole.reshape(5, 4, 30).permute(2, 0, 1)):
        assert not view.is_contiguous()
        one, two = (tw.Compressor(codec, tw.Residual()) for _ in range(2))
        assert one.compress("w", view, step=0) == two.compress("w", view.contiguous(), step=0)


def test_gradients_are_not_changed() -> None:
    gradient = make("normal", 100, seed=1)
    before = gradient.clone()
    for feedback in FEEDBACKS:
        for fuse in (True, False):
            compressor = tw.Compressor(tw.TopK(0.1), feedback, fuse=fuse)
            compressor.compress_all({"w": gradient}, step=0, learning_rate=0.1)
    assert same_bits(gradient, before)


@pytest.mark.parametrize(
    "gradient",
    [
        torch.eye(3).to_sparse(),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, dtype=torch.int64),
        torch.ones(3, dtype=torch.bool),
    ],
    ids=lambda gradient: f"{gradient.dtype}, {gradient.layout}",
)
def test_gradients_that_are_not_dense_and_real_are_refused(gradient: Tensor) -> None:
    compressor = tw.Compressor(tw.OneBit(), tw.Residual())
    with pytest.raises(tw.ConfigError, match="gradients must be dense and real, got"):
        compressor.compress("w", gradient, step=0)
    assert compressor.state_dict() == {}


def test_flattening_does_not_copy_what_is_flat_already() -> None:
    gradient = torch.ones(4, 5, requires_grad=True)
    assert flatten(gradient).data_ptr() == gradient.data_ptr()
    assert not flatten(gradient).requires_grad


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan, 1e300])
@pytest.mark.parametrize("fuse", [True, False])
def test_what_is_not_finite_never_touches_state(fuse: bool, poison: float) -> None:
    """1e300 is finite only in float64: it overflows on the way."""
    compressor = used(tw.Compressor(tw.OneBit(), tw.Residual(), fuse=fuse))
    before = compressor.state_dict()
    gradient = torch.ones(100, dtype=torch.float64)
    gradient[3] = poison
    sent = compressor.compress("a", gradient, step=9)
    assert sent.wire_id == tw.Float32.wire_id
    assert not sent.decode().isfinite().all()
    assert same_state(compressor.state_dict(), before)


@pytest.mark.parametrize("poison", [math.inf, math.nan, 1e30, 1e38])
@pytest.mark.parametrize("undo", [True, False])
@pytest.mark.parametrize("fuse", [True, False])
def test_what_is_not_finite_is_seen_though_it_was_cleared(
    fuse: bool, undo: bool, poison: float
) -> None:
    """With elements that are finite, but whose squares no float can hold, as well."""
    compressor = used(tw.Compressor(tw.TopK(0.1), tw.Residual(), fuse=fuse, undo=undo))
    before = compressor.state_dict()
    gradient = torch.ones(100)
    gradient[3:7] = poison
    piece = tw.Piece.whole(tw.Key("a", (100,)))
    sent = compressor.compress_piece(piece, gradient, step=9, clear=True)
    assert sent.wire_id == tw.Float32.wire_id
    assert bool(sent.decode().isnan().all())
    assert same_state(compressor.state_dict(), before)


@pytest.mark.parametrize("clear", [True, False])
def test_what_only_floats_cannot_square_is_not_lost(clear: bool) -> None:
    """It is sent and owed, or nothing of it was used: never half of both."""
    compressor = tw.Compressor(tw.TopK(0.1), tw.Residual(), undo=clear)
    gradient = torch.arange(100.0) * 1e20
    piece = tw.Piece.whole(tw.Key("a", (100,)))
    sent = compressor.compress_piece(piece, gradient.clone(), step=0, clear=clear)
    if clear:
        assert bool(sent.decode().isnan().all())
        assert not any(bool(s["residual"].any()) for s in compressor.state_dict().values())
    else:
        assert torch.equal(sent.decode() + compressor.state_dict()["a"]["residual"], gradient)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("codec", [tw.OneBit(), tw.OneBit("l2"), tw.TopK(0.5)], ids=repr)
def test_large_gradients_do_not_add_up_to_an_inf(codec: Codec, fuse: bool) -> None:
    """Each is finite, their sum in a residual is not: it would stay there for ever."""
    compressor = tw.Compressor(codec, tw.Residual(), fuse=fuse)
    for step in range(4):
        compressor.compress("w", torch.tensor([3e38, 1.0, 3e38, 3e38]), step=step)
    sent = compressor.compress("w", torch.ones(4), step=9)
    assert bool(sent.decode().isfinite().all())
    assert all(bool(b.isfinite().all()) for b in compressor.state_dict().get("w", {}).values())


@pytest.mark.parametrize("fuse", [True, False])
def test_a_corrupt_push_is_named_and_changes_nothing(fuse: bool) -> None:
    server = tw.Compressor(tw.OneBit(), tw.Residual(rescale=True), fuse=fuse)
    piece = tw.Piece.whole(tw.Key("w", (100,)))
    good = tw.Encoded(4, 100, tw.OneBit().encode(make("normal", 100, seed=1), seed=0))
    server.compress_sum(piece, [good, good], weight=0.5, step=0, learning_rate=0.1)
    before = server.state_dict()
    for bad in (bytes(good.payload)[:-1], bytes(good.payload) + b"\0", b""):
        pushes = [good, tw.Encoded(4, 100, bad)]
        with pytest.raises(tw.CorruptPayloadError, match="onebit"):
            server.compress_sum(piece, pushes, weight=0.5, step=1, learning_rate=0.2)
        assert same_state(server.state_dict(), before)


def test_a_server_passes_an_overflow_on() -> None:
    server = tw.Compressor(tw.OneBit(), tw.Residual())
    good = tw.Encoded(4, 3, tw.OneBit().encode(torch.ones(3), seed=0))
    bad = tw.Encoded(1, 3, tw.Float32().encode(torch.tensor([1.0, math.inf, 1.0]), seed=0))
    answer = server.compress_sum(tw.Piece.whole(tw.Key("w", (3,))), [good, bad], weight=0.5, step=0)
    assert answer.wire_id == tw.Float32.wire_id
    assert answer.decode().tolist() == [1.0, math.inf, 1.0]


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("undo", [True, False])
@pytest.mark.parametrize("fuse", [True, False])
def test_a_sum_that_is_too_large_leaves_no_trace(fuse: bool, undo: bool, rescale: bool) -> None:
    """Each push is finite, and what they add up to must not get into a residual."""
    server = tw.Compressor(tw.TopK(0.5), tw.Residual(rescale=rescale), fuse=fuse, undo=undo)
    piece = tw.Piece.whole(tw.Key("w", (4,)))
    good, large = (
        tw.Encoded(tw.TopK.wire_id, 4, tw.TopK(0.5).encode(torch.tensor(values), seed=0))
        for values in ([1.0, -2.0, 3.0, 0.5], [2e38, 0.0, 0.0, 1.0])
    )
    server.compress_sum(piece, [good, good], weight=0.5, step=0, learning_rate=0.1)
    before = server.state_dict()
    answer = server.compress_sum(piece, [large, good], weight=0.5, step=1, learning_rate=0.2)
    assert answer.wire_id == tw.Float32.wire_id
    assert answer.decode().tolist() == [math.inf, -1.0, 1.5, 0.5]
    assert same_state(server.state_dict(), before)


def test_sums_are_formed_in_the_order_of_the_pushes() -> None:
    values = torch.tensor([[1e8, 1.0], [1.0, 1e-8], [-1e8, 1.0]])
    pushes = [tw.Encoded(1, 2, tw.Float32().encode(row, seed=0)) for row in values]
    server = tw.Compressor(tw.Float32(), tw.NoFeedback())
    answer = server.compress_sum(tw.Piece.whole(tw.Key("w", (2,))), pushes, weight=1.0, step=0)
    assert torch.equal(answer.decode(), (values[0] + values[1]) + values[2])


def test_clipping_knows_the_norm_of_all_tensors() -> None:
    compressor = tw.Compressor(tw.Float32(), tw.chain(tw.Clip(1.0)), workers=4)
    sent = compressor.compress_all({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, step=0)
    gain = math.sqrt(4) * 1.0 / (5.0 + 1e-6)
    assert sent["a"].decode().item() == pytest.approx(3 * gain)
    assert sent["b"].decode().item() == pytest.approx(4 * gain)
    with pytest.raises(tw.ConfigError, match="needs gradient_norm"):
        compressor.compress("a", torch.tensor([3.0]), step=0)


def test_rescaling_needs_the_learning_rate() -> None:
    compressor = tw.Compressor(tw.OneBit(), tw.Residual(rescale=True))
    with pytest.raises(tw.ConfigError, match="needs the learning rate"):
        compressor.compress("w", torch.ones(3), step=0)


def test_a_learning_rate_of_zero_is_not_divided_by() -> None:
    """P11: the last rate that was not zero is carried over a step without one."""
    compressor = tw.Compressor(tw.TopK(0.25), tw.Residual(rescale=True))
    gradient = torch.tensor([40.0, 1.0, 1.0, 1.0])
    for step, rate in enumerate([0.0, 0.2, 0.0, 0.1]):
        compressor.compress("w", gradient, step=step, learning_rate=rate)
    residual = compressor.state_dict()["w"]["residual"]
    assert residual.tolist() == [0.0, 7.0, 7.0, 7.0]  # (1 + 1 + 1) * 0.2 / 0.1 + 1


def test_names_keep_their_state_apart() -> None:
    compressor = tw.Compressor(tw.TopK(0.5), tw.Residual())
    compressor.compress("a", torch.tensor([1.0, 2.0]), step=0)
    compressor.compress("b", torch.tensor([3.0, 4.0]), step=0)
    states = compressor.state_dict()
    assert states["a"]["residual"].tolist() == [1.0, 0.0]
    assert states["b"]["residual"].tolist() == [3.0, 0.0]


def test_tensors_steps_and_seeds_draw_different_chance() -> None:
    x = make("normal", 500, seed=1)

    def sent(seed: int, name: str, step: int) -> bytes:
        compressor = tw.Compressor(tw.Dither(2), tw.NoFeedback(), seed=seed)
        return bytes(compressor.compress(name, x, step=step).payload)

    payloads = {sent(0, "a", 0), sent(1, "a", 0), sent(0, "b", 0), sent(0, "a", 1)}
    assert len(payloads) == 4
    assert sent(0, "a", 0) in payloads


def test_encoded_decodes_into_what_it_is_given() -> None:
    encoded = tw.Compressor(tw.Float32(), tw.NoFeedback()).compress("w", torch.ones(3), step=0)
    out = torch.zeros(3)
    assert encoded.decode(out) is out
    assert encoded.nbytes == 12
    assert out.tolist() == [1.0] * 3


@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 5)])
@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
def test_scalars_and_empty_tensors(feedback: Feedback, shape: tuple[int, ...]) -> None:
    for codec in (tw.OneBit(), tw.TopK(0.1), tw.Dither(3), tw.RandomK(0.5)):
        compressor = tw.Compressor(codec, feedback)
        sent = compressor.compress_all({"w": torch.ones(shape)}, step=0, learning_rate=0.1)["w"]
        assert sent.numel == math.prod(shape)
        assert bool(sent.decode().isfinite().all())
