"""``find_fusion``: pairs of feedback and codec that one native pass can do together.

The plain pass in ``passes.py`` is what each of them means; a property test keeps both equal, bit
for bit. Any other pair takes the plain pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from thinwire import _native
from thinwire.codec.base import Codec, Payload, accepted, finite
from thinwire.codec.chunk_topk import ChunkTopK
from thinwire.codec.sign import OneBit
from thinwire.codec.sparse import Nonzero
from thinwire.codec.topk import TopK
from thinwire.compressor.stages import Stages
from thinwire.compressor.state import Change
from thinwire.feedback.base import LARGEST, Feedback, NoFeedback
from thinwire.feedback.residual import Residual

Stepped = tuple[int | None, float]
"""The nbytes of a payload (None: the gradient is not finite), and its sum of squares."""


class Fusion(Protocol):
    """A step of feedback and encoding, in one pass over memory."""

    @property
    def sums_in_place(self) -> bool:
        """Whether ``sum_step`` changes so little of the state that it needs no other to write."""

    @property
    def clears(self) -> bool:
        """Whether ``step`` can clear its gradient on the way."""

    def step(
        self, gradient: Tensor, change: Change, out: memoryview, *, clear: bool = False
    ) -> Stepped:
        """Feedback, encoding and feedback again. With ``clear`` the gradient is zeros then, if this
        ``clears``.

        The payload is written to the front of ``out``, which has room for the codec's
        ``max_nbytes``.
        """

    def can_sum(self, wire_ids: Iterable[int]) -> bool:
        """Whether ``sum_step`` takes payloads with these wire ids."""

    def sum_step(
        self,
        payloads: Sequence[Payload],
        weight: float,
        change: Change,
        out: memoryview,
        *,
        numel: int,
    ) -> int | None:
        """The same on ``weight`` times the sum of payloads; None, and nothing was done, if that is
        too large for feedback."""


def find_fusion(codec: Codec, feedback: Feedback) -> Fusion | None:
    """The fused form of this pair, if there is one."""
    if isinstance(codec, Nonzero) and feedback == NoFeedback():
        return _SparseSum(codec)
    stages = Stages.of(feedback)
    if stages is None:
        return None
    if isinstance(codec, OneBit) and stages.momentum is None:
        return _OneBitFusion(codec, stages)
    if isinstance(codec, TopK):
        return _TopKFusion(codec, stages)
    if isinstance(codec, ChunkTopK) and stages.momentum is None:
        return _ChunkTopKFusion(codec, stages)
    return None


@dataclass(frozen=True, slots=True)
class _OneBitFusion:
    codec: OneBit
    stages: Stages
    sums_in_place = clears = False

    def step(
        self, gradient: Tensor, change: Change, out: memoryview, *, clear: bool = False
    ) -> Stepped:
        gain, carried = self.stages.gain(gradient, change.info), change.info.carried
        momentum, factor, runs = None, 0.0, None
        if carried is not None:
            if gain != 1.0:  # one rounding for each of the two factors, as in the plain pass
                gradient = gradient * gain
            gain, momentum, factor = carried.gain, carried.momentum, carried.factor
            runs = carried.runs
        return _native.onebit_step(
            gradient,
            *self._lazy(change),
            self.codec.native_scale,
            self.codec.native_block,
            gain,
            self.stages.keep(change),
            out,
            momentum,
            factor,
            self.codec.stretch,
            runs,
        )

    def can_sum(self, wire_ids: Iterable[int]) -> bool:
        return self.stages.clip is None and all(i == OneBit.wire_id for i in wire_ids)

    def sum_step(
        self,
        payloads: Sequence[Payload],
        weight: float,
        change: Change,
        out: memoryview,
        *,
        numel: int,
    ) -> int:
        for push in payloads:
            accepted(_native.onebit_check(push, numel), self.codec.name, numel)
        nbytes = _native.onebit_sum_step(
            payloads,
            weight,
            *self._lazy(change),
            self.codec.native_scale,
            self.codec.native_block,
            self.stages.keep(change),
            out,
            self.codec.stretch,
        )
        return finite(nbytes, self.codec.name)

    def _lazy(self, change: Change) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        state, after = change.state, change.after
        scales = state.lazy_scales(self.codec.native_block)
        room = after.room_for_scales(state)
        return state.buffers["residual"], after.buffers["residual"], scales, room


_LISTS = (TopK.wire_id, Nonzero.wire_id)
"""Codecs whose payloads are lists of elements."""


def _check_lists(payloads: Sequence[Payload], name: str, numel: int) -> None:
    for payload in payloads:
        accepted(_native.sparse_check(payload, numel), name, numel)


@dataclass(frozen=True, slots=True)
class _SparseSum:
    """Lists of elements are merged: the tensor they belong to is never filled."""

    codec: Nonzero
    sums_in_place = clears = False

    def step(
        self, gradient: Tensor, change: Change, out: memoryview, *, clear: bool = False
    ) -> Stepped:
        return _native.nonzero_encode(gradient, out), _native.sum_squares(gradient)

    def can_sum(self, wire_ids: Iterable[int]) -> bool:
        return all(i in _LISTS for i in wire_ids)

    def sum_step(
        self,
        payloads: Sequence[Payload],
        weight: float,
        change: Change,
        out: memoryview,
        *,
        numel: int,
    ) -> int:
        _check_lists(payloads, self.codec.name, numel)
        return finite(_native.sparse_merge(payloads, numel, weight, out), self.codec.name)


@dataclass(frozen=True, slots=True)
class _TopKFusion:
    codec: TopK
    stages: Stages
    sums_in_place = clears = True

    def step(
        self, gradient: Tensor, change: Change, out: memoryview, *, clear: bool = False
    ) -> Stepped:
        now, then = change.state.settle(), change.after.buffers
        change.after.scales = None
        gain, keep = self.stages.gain(gradient, change.info), self.stages.keep(change)
        gradient, gain = self.stages.given(gradient, change, clear=clear, gain=gain)
        k = self.codec.kept(gradient.numel())
        settings = k, self.codec.native_select, self.codec.native_values, gain, keep
        momentum = self.stages.momentum
        if momentum is None:
            return _native.residual_topk(
                gradient, now["residual"], then["residual"], *settings, out, clear
            )
        return _native.dgc_topk(
            gradient,
            now["velocity"],
            then["velocity"],
            now["residual"],
            then["residual"],
            *settings,
            momentum.momentum,
            momentum.nesterov,
            momentum.mask,
            out,
            clear,
        )

    def can_sum(self, wire_ids: Iterable[int]) -> bool:
        # With a residual that follows the learning rate all of it changes.
        alone = replace(self.stages, shared=None) == Stages(Residual())
        return alone and all(i in _LISTS for i in wire_ids)

    def sum_step(
        self,
        payloads: Sequence[Payload],
        weight: float,
        change: Change,
        out: memoryview,
        *,
        numel: int,
    ) -> int | None:
        _check_lists(payloads, self.codec.name, numel)
        return _native.topk_sum_step(
            payloads,
            weight,
            change.state.settle()["residual"],
            self.codec.kept(numel),
            self.codec.native_select,
            self.codec.native_values,
            LARGEST**2,
            change.log,
            out,
        )


@dataclass(frozen=True, slots=True)
class _ChunkTopKFusion:
    codec: ChunkTopK
    stages: Stages
    sums_in_place = False
    clears = True

    def step(
        self, gradient: Tensor, change: Change, out: memoryview, *, clear: bool = False
    ) -> Stepped:
        now, then = change.state.settle(), change.after.buffers
        change.after.scales = None
        gain, keep = self.stages.gain(gradient, change.info), self.stages.keep(change)
        gradient, gain = self.stages.given(gradient, change, clear=clear, gain=gain)
        return _native.chunk_topk_step(
            gradient,
            now["residual"],
            then["residual"],
            self.codec.ratio,
            self.codec.bits,
            gain,
            keep,
            out,
            clear,
        )

    def can_sum(self, wire_ids: Iterable[int]) -> bool:
        del wire_ids  # a sum of lists has more elements than a list may hold: it is dense
        return False

    def sum_step(
        self,
        payloads: Sequence[Payload],
        weight: float,
        change: Change,
        out: memoryview,
        *,
        numel: int,
    ) -> None:
        """Not done: ``can_sum`` says so."""
