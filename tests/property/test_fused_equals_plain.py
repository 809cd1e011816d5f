"""A fused step is the plain one: the same bytes and the same state, bit for bit, for ever."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import thinwire as tw
from tests.cases import RESIDUAL_CHAINS, gradients, laws, same_bits
from thinwire import _native
from thinwire.codec import registry
from thinwire.codec.arena import Slab
from thinwire.codec.base import Codec
from thinwire.codec.policy import Policy
from thinwire.compressor.fused import find_fusion
from thinwire.feedback.base import Feedback, State
from thinwire.testing.tensors import make

ONE_BITS: list[Codec] = [
    *(tw.OneBit(scale, block) for scale in ("l1", "l2") for block in (None, 64, 128, 4096)),
    tw.OneBit(stretch=1.5),
    tw.OneBit(block=64, stretch=0.7),
]
TOP_KS: list[Codec] = [
    tw.TopK(ratio, values, select)
    for ratio in (0.01, 0.3, 1.0)
    for values in ("float32", "float16", "int8")
    for select in ("sampled", "exact")
]
CHUNK_TOP_KS: list[Codec] = [
    tw.ChunkTopK(ratio, values) for ratio in (1 / 64, 0.3, 1.0) for values in ("2bit", "4bit")
]
WITHOUT_MOMENTUM: list[Feedback] = [
    tw.Residual(),
    tw.Residual(rescale=True),
    tw.Residual(decay=0.9),
    tw.Residual(rescale=True, decay=0.5),
    tw.chain(tw.Clip(1.0), tw.Residual()),
]
SERVER_FEEDBACKS = (tw.Residual(), tw.Residual(rescale=True), tw.Residual(decay=0.9))


class Twins:
    """Compressors with the same settings that must never differ.

    One is plain, one fused, and both again with memory of ours for their payloads.
    """

    def __init__(self, chooser: Codec | Policy, feedback: Feedback) -> None:
        self.plain, self.fused, *self.writing = (
            tw.Compressor(chooser, feedback, seed=3, rank=1, workers=4, fuse=fuse)
            for fuse in (False, True, False, True)
        )

    def load_state_dict(self, state: dict[str, State]) -> None:
        for twin in (self.plain, self.fused, *self.writing):
            twin.load_state_dict(state)

    def step(self, gradient: Tensor, *, step: int, learning_rate: float = 0.1) -> tw.Encoded:
        fused, plain = (
            twin.compress_all({"w": gradient}, step=step, learning_rate=learning_rate)["w"]
            for twin in (self.fused, self.plain)
        )
        check_equal(fused, plain)
        piece = tw.Piece.whole(tw.Key("w", tuple(gradient.shape)))
        norm = math.sqrt(_native.sum_squares(gradient))
        for twin in self.writing:
            with Margins(twin.max_nbytes(piece, step=step), step=step) as arena:
                spent = gradient.clone()
                written = twin.compress_piece(
                    piece,
                    spent,
                    step=step,
                    gradient_norm=norm,
                    learning_rate=learning_rate,
                    clear=True,
                    arena=arena,
                )
                check_equal(written, plain)
                sparse = registry.codec_class(written.wire_id).sparse
                assert same_bits(spent, torch.zeros_like(spent) if sparse else gradient)
        return fused

    def sum(self, piece: tw.Piece, pushes: Sequence[tw.Encoded], *, step: int, rate: float) -> None:
        weight = 1 / max(len(pushes), 1)
        fused, plain = (
            twin.compress_sum(piece, pushes, weight=weight, step=step, learning_rate=rate)
            for twin in (self.fused, self.plain)
        )
        check_equal(fused, plain)
        for twin in self.writing:
            with Margins(twin.max_nbytes(piece, step=step), step=step) as arena:
                written = twin.compress_sum(
                    piece, pushes, weight=weight, step=step, learning_rate=rate, arena=arena
                )
                check_equal(written, plain)

    def check_states(self) -> None:
        plain = self.plain.state_dict()
        for twin in (self.fused, *self.writing):
            found = twin.state_dict()
            assert found.keys() == plain.keys()
            for name, state in found.items():
                assert state.keys() == plain[name].keys()
                for key, buffer in state.items():
                    assert same_bits(buffer, plain[name][key]), (name, key)


def check_equal(found: tw.Encoded, expected: tw.Encoded) -> None:
    assert found.wire_id == expected.wire_id
    assert bytes(found.payload) == bytes(expected.payload)


class Margins(Slab):
    """Memory for one payload, at any alignment, as much as it may need or more; nothing beside."""

    def __init__(self, most_nbytes: int, *, step: int) -> None:
        self._start = 23 * (step + most_nbytes) % 64
        self._stop = self._start + most_nbytes + (0, 1, 0, 1000)[step % 4]
        self._memory = bytearray(b"?" * (self._stop + 64))
        super().__init__(memoryview(self._memory)[self._start : self._stop])

    def __enter__(self) -> Slab:
        return self

    def __exit__(self, *_: object) -> None:
        assert set(self._memory[: self._start] + self._memory[self._stop :]) == {ord("?")}


def can_sum(codec: Codec, feedback: Feedback) -> bool:
    fusion = find_fusion(codec, feedback)
    return fusion is not None and fusion.can_sum([codec.wire_id])


def test_every_pair_that_should_be_fused_is() -> None:
    for feedback in RESIDUAL_CHAINS:
        assert all(find_fusion(codec, feedback) for codec in TOP_KS)
    for feedback in WITHOUT_MOMENTUM:
        assert all(find_fusion(codec, feedback) for codec in (*ONE_BITS, *CHUNK_TOP_KS))
    for codec in ONE_BITS:
        assert all(can_sum(codec, feedback) for feedback in SERVER_FEEDBACKS)
    for codec in TOP_KS:
        assert can_sum(codec, tw.Residual())
        for changes_all in (tw.Residual(rescale=True), tw.Residual(decay=0.9)):
            assert not can_sum(codec, changes_all)
    assert find_fusion(tw.OneBit(), tw.NoFeedback()) is None
    assert find_fusion(tw.Dither(4), tw.Residual()) is None
    assert find_fusion(tw.TopK(0.1), tw.chain(tw.Residual(), tw.Clip(1.0))) is None


def check_steps(twins: Twins, data: st.DataObject) -> None:
    numel = data.draw(st.integers(0, 300) | st.sampled_from([63, 64, 65, 512, 4097]))
    rates = st.sampled_from([0.1, 0.01, 0.0, 0.3])
    for step, gradient in enumerate(data.draw(gradients(numel, 5))):
        twins.step(gradient, step=step, learning_rate=data.draw(rates))
        if data.draw(st.booleans()):  # reading the state settles a lazy residual
            twins.check_states()
    twins.check_states()


@pytest.mark.parametrize("feedback", WITHOUT_MOMENTUM, ids=repr)
@laws
@given(codec=st.sampled_from(ONE_BITS), data=st.data())
def test_onebit_steps_are_equal(codec: Codec, feedback: Feedback, data: st.DataObject) -> None:
    check_steps(Twins(codec, feedback), data)


@pytest.mark.parametrize("feedback", RESIDUAL_CHAINS, ids=repr)
@laws
@given(codec=st.sampled_from(CHUNK_TOP_KS), data=st.data())
def test_chunk_topk_steps_are_equal(codec: Codec, feedback: Feedback, data: st.DataObject) -> None:
    check_steps(Twins(codec, feedback), data)


@pytest.mark.parametrize("feedback", RESIDUAL_CHAINS, ids=repr)
@laws
@given(codec=st.sampled_from(TOP_KS), data=st.data())
def test_topk_steps_are_equal(codec: Codec, feedback: Feedback, data: st.DataObject) -> None:
    check_steps(Twins(codec, feedback), data)


@pytest.mark.parametrize("feedback", SERVER_FEEDBACKS, ids=repr)
@laws
@given(codec=st.sampled_from(ONE_BITS), data=st.data())
def test_sums_are_equal(codec: Codec, feedback: Feedback, data: st.DataObject) -> None:
    twins = Twins(codec, feedback)
    numel = data.draw(st.integers(0, 300) | st.sampled_from([63, 64, 65, 512, 4097]))
    piece = tw.Piece.whole(tw.Key("w", (numel,)))
    workers = data.draw(st.integers(0, 4))
    for step in range(4):
        given_ = data.draw(gradients(numel, workers))
        pushed = [data.draw(st.sampled_from(ONE_BITS)).encode(g, seed=0) for g in given_]
        pushes = [tw.Encoded(tw.OneBit.wire_id, numel, payload) for payload in pushed]
        twins.sum(piece, pushes, step=step, rate=data.draw(st.sampled_from([0.1, 0.01])))
    twins.check_states()


@laws
@given(data=st.data())
def test_sums_of_different_codecs_are_equal(data: st.DataObject) -> None:
    twins = Twins(tw.OneBit(block=64), tw.Residual())
    codecs: list[Codec] = [tw.OneBit(), tw.Float32(), tw.TopK(0.1), tw.OneBit(block=128)]
    for step in range(4):
        given_ = data.draw(gradients(200, 3))
        chosen = [data.draw(st.sampled_from(codecs)) for _ in given_]
        pushes = [
            tw.Encoded(codec.wire_id, 200, codec.encode(gradient, seed=0))
            for codec, gradient in zip(chosen, given_, strict=True)
        ]
        twins.sum(tw.Piece.whole(tw.Key("w", (200,))), pushes, step=step, rate=0.1)
    twins.check_states()


def check_sums_of_lists(twins: Twins, data: st.DataObject) -> None:
    numel = data.draw(st.integers(0, 300) | st.sampled_from([512, 4097]))
    sparse: list[Codec] = [tw.TopK(0.1), tw.TopK(0.3, "int8"), tw.Nonzero()]
    for step in range(4):
        given_ = data.draw(gradients(numel, data.draw(st.integers(0, 4))))
        chosen = [data.draw(st.sampled_from(sparse)) for _ in given_]
        pushes = [
            tw.Encoded(codec.wire_id, numel, codec.encode(gradient, seed=0))
            for codec, gradient in zip(chosen, given_, strict=True)
        ]
        rate = data.draw(st.sampled_from([0.1, 0.01]))
        twins.sum(tw.Piece.whole(tw.Key("w", (numel,))), pushes, step=step, rate=rate)
    twins.check_states()


@laws
@given(data=st.data())
def test_merged_lists_are_sums(data: st.DataObject) -> None:
    check_sums_of_lists(Twins(tw.Nonzero(), tw.NoFeedback()), data)


@pytest.mark.parametrize("feedback", SERVER_FEEDBACKS, ids=repr)
@laws
@given(codec=st.sampled_from(TOP_KS), data=st.data())
def test_top_k_of_merged_lists_is_that_of_sums(
    codec: Codec, feedback: Feedback, data: st.DataObject
) -> None:
    check_sums_of_lists(Twins(codec, feedback), data)


@pytest.mark.parametrize("numel", [65535, 65536, 65537, 200_003])
def test_long_lists_are_summed(numel: int) -> None:
    twins = Twins(tw.TopK(0.01), tw.Residual())
    piece = tw.Piece.whole(tw.Key("w", (numel,)))
    for step in range(3):
        pushes = [
            tw.Encoded(tw.TopK.wire_id, numel, tw.TopK(0.01).encode(gradient, seed=0))
            for gradient in (make("normal", numel, seed=step), make("heavy-tailed", numel, seed=9))
        ]
        twins.sum(piece, pushes, step=step, rate=0.1 / (step + 1))
    twins.check_states()


@laws
@given(data=st.data(), own=st.integers(0, 2))
def test_a_sum_may_take_the_room_of_one_of_its_pushes(data: st.DataObject, own: int) -> None:
    """As a rank does that serves: its own push is a view of the place where the mean goes."""
    numel = data.draw(st.integers(0, 300) | st.sampled_from([4096, 4097, 9000]))
    given_ = data.draw(gradients(numel, 3))
    compressor = tw.Compressor(tw.Float32(), tw.NoFeedback())
    piece = tw.Piece.whole(tw.Key("w", (numel,)))
    expected = torch.zeros(numel)
    for gradient in given_:
        expected += gradient * (1 / 3)
    pushes = [compressor.compress_piece(piece, g, step=0, view=True) for g in given_]
    found = compressor.compress_sum(piece, pushes, weight=1 / 3, step=0, room=given_[own])
    assert same_bits(found.decode(), expected)


class Cycle:
    """A policy that takes the next codec at every step."""

    def __init__(self, *codecs: Codec) -> None:
        self._codecs = codecs

    def choose(self, key: tw.Key, *, step: int, workers: int) -> Codec:
        return self._codecs[step % len(self._codecs)]


@laws
@given(data=st.data())
def test_the_codec_may_change_between_steps(data: st.DataObject) -> None:
    codecs: list[Codec] = [
        tw.OneBit(),
        tw.OneBit("l2", 64),
        tw.TopK(0.1),
        tw.ChunkTopK(),
        tw.Float16(),
        tw.Dither(3),
    ]
    chosen = data.draw(st.lists(st.sampled_from(codecs), min_size=2, max_size=6))
    twins = Twins(Cycle(*chosen), tw.chain(tw.Clip(1.0), tw.Residual()))
    for step, gradient in enumerate(data.draw(gradients(200, 8))):
        twins.step(gradient, step=step)
    twins.check_states()


@pytest.mark.parametrize("codec", [tw.OneBit(), tw.OneBit(block=64), tw.TopK(0.1)], ids=repr)
@laws
@given(data=st.data())
def test_saving_and_loading_in_the_middle_changes_nothing(
    codec: Codec, data: st.DataObject
) -> None:
    twins, undisturbed = Twins(codec, tw.Residual()), Twins(codec, tw.Residual())
    for step, gradient in enumerate(data.draw(gradients(150, 6))):
        if step == 3:
            saved = twins.fused.state_dict()
            twins = Twins(codec, tw.Residual())
            twins.load_state_dict(saved)
        sent, expected = twins.step(gradient, step=step), undisturbed.step(gradient, step=step)
        assert sent.payload == expected.payload
    twins.check_states()


@pytest.mark.parametrize("codec", [tw.OneBit(block=128), tw.TopK(0.01), tw.ChunkTopK()], ids=repr)
def test_large_tensors_are_equal(codec: Codec) -> None:
    twins = Twins(codec, tw.chain(tw.Clip(1.0), tw.Residual()))
    for step in range(4):
        twins.step(make("heavy-tailed", 200_003, seed=step), step=step)
    twins.check_states()


def test_a_gradient_that_is_not_finite_leaves_both_alone() -> None:
    twins = Twins(tw.OneBit(), tw.Residual())
    twins.step(make("normal", 100, seed=1), step=0)
    before = twins.fused.state_dict()["w"]["residual"]
    poisoned = make("normal", 100, seed=2)
    poisoned[7] = float("inf")
    assert not twins.step(poisoned, step=1).decode().isfinite().all()
    assert torch.equal(twins.fused.state_dict()["w"]["residual"], before)
    twins.check_states()
