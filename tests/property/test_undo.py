"""A step that is undone leaves no trace, whatever the codec and the feedback."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

import thinwire as tw
from tests.cases import RESIDUAL_CHAINS, gradients, laws, same_bits
from thinwire.codec.base import Codec
from thinwire.feedback.base import Feedback

CODECS: list[Codec] = [
    tw.OneBit(),
    tw.OneBit("l2", 64),
    tw.TopK(0.1),
    tw.TopK(0.3, "int8"),
    tw.Dither(4),
    tw.Float32(),
]


@pytest.mark.parametrize("feedback", RESIDUAL_CHAINS, ids=repr)
@laws
@given(codec=st.sampled_from(CODECS), undone=st.integers(0, 4), data=st.data())
def test_undoing_a_step_is_not_doing_it(
    feedback: Feedback, codec: Codec, undone: int, data: st.DataObject
) -> None:
    numel = data.draw(st.integers(1, 200))
    given_ = data.draw(gradients(numel, 5))
    without, with_ = (tw.Compressor(codec, feedback, undo=undo) for undo in (False, True))
    for step, gradient in enumerate(given_):
        if step == undone:
            with_.compress_all({"w": gradient}, step=step, learning_rate=0.1)
            with_.undo_step(step)
            continue
        payloads = [
            c.compress_all({"w": gradient}, step=step, learning_rate=0.1)["w"].payload
            for c in (without, with_)
        ]
        assert bytes(payloads[0]) == bytes(payloads[1])
    check_same_state(without, with_)


@pytest.mark.parametrize("feedback", [tw.Residual(), tw.Residual(rescale=True)], ids=repr)
@laws
@given(codec=st.sampled_from(CODECS), undone=st.integers(0, 4), data=st.data())
def test_undoing_an_answer_is_not_giving_it(
    feedback: Feedback, codec: Codec, undone: int, data: st.DataObject
) -> None:
    """Of a server, whatever workers push: its codec's payloads, or now and then another's."""
    numel = data.draw(st.integers(1, 200))
    piece = tw.Piece.whole(tw.Key("w", (numel,)))
    without, with_ = (tw.Compressor(codec, feedback, undo=undo) for undo in (False, True))
    for step in range(5):
        pushed = data.draw(st.sampled_from([codec, codec, tw.Nonzero(), tw.Float32()]))
        pushes = [
            tw.Encoded(pushed.wire_id, numel, pushed.encode(gradient, seed=0))
            for gradient in data.draw(gradients(numel, 2))
        ]
        answers = [
            bytes(
                server.compress_sum(
                    piece, pushes, weight=0.5, step=step, learning_rate=0.1 / (1 + step)
                ).payload
            )
            for server in ((with_,) if step == undone else (without, with_))
        ]
        if step == undone:
            with_.undo_step(step)
        assert len(set(answers)) == 1
    check_same_state(without, with_)


def check_same_state(without: tw.Compressor, with_: tw.Compressor) -> None:
    after = with_.state_dict().get("w", {})
    for key, buffer in without.state_dict().get("w", {}).items():
        assert same_bits(buffer, after[key]), key


def test_only_the_newest_step_can_be_undone() -> None:
    compressor = tw.Compressor(tw.OneBit(), tw.Residual(), undo=True)
    for step in range(3):
        compressor.compress("w", torch.randn(100), step=step)
    before = compressor.state_dict()["w"]["residual"]
    compressor.undo_step(1)
    assert torch.equal(compressor.state_dict()["w"]["residual"], before)
