"""``check_feedback``: the laws of feedback. Each raises AssertionError if it is broken."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from thinwire.codec.base import Codec
from thinwire.codec.chunk_topk import ChunkTopK
from thinwire.codec.dense import Float16
from thinwire.codec.dither import Dither
from thinwire.codec.randomk import RandomK
from thinwire.codec.sign import OneBit
from thinwire.codec.topk import TopK
from thinwire.feedback.base import Feedback, State
from thinwire.feedback.residual import decay_of
from thinwire.gradient.steps import StepInfo
from thinwire.testing.tensors import make, naming, require, require_frozen_value

CODECS = (
    Float16(),
    OneBit(),
    OneBit("l2", block=64),
    TopK(0.05, values="int8"),
    ChunkTopK(0.05),
    RandomK(0.3),
    Dither(2),
)
"""What ``check_feedback`` loses precision with: dense and sparse, biased and not."""

STEPS = 12
NUMEL = 300


def check_feedback(feedback: Feedback) -> None:
    """Raise AssertionError, and say why, if ``feedback`` breaks a law with any codec here."""
    for codec in CODECS:
        with naming(f"{feedback!r} around {codec!r}"):
            for law in LAWS:
                law(feedback, codec)


def settings_are_a_frozen_value(feedback: Feedback, codec: Codec) -> None:
    del codec
    require_frozen_value(feedback)


def buffers_begin_at_zero(feedback: Feedback, codec: Codec) -> None:
    del codec
    first, again = feedback.init(NUMEL), feedback.init(NUMEL)
    require(
        set(first) == set(feedback.init(0)), "which buffers there are depends on the tensor's size"
    )
    for key, buffer in first.items():
        require(not buffer.any(), f"buffer {key!r} does not begin at zero")
        shared = buffer.data_ptr() == again[key].data_ptr()
        require(not shared, f"two tensors share the buffer {key!r}")
        require(
            buffer.dtype in (torch.float32, torch.float64), f"{key!r} is {buffer.dtype}: too coarse"
        )


def arguments_are_untouched(feedback: Feedback, codec: Codec) -> None:
    state = feedback.init(NUMEL)
    for step in range(STEPS):
        x = _gradient(step)
        wanted = feedback.before(x, state, _info(x, step))
        require(torch.equal(x, _gradient(step)), "before changed the gradient")
        sent = _sent(codec, wanted, step)
        kept = sent.clone()
        feedback.after(sent, state, sparse=codec.sparse)
        require(torch.equal(sent, kept), "after changed what was sent")


def all_memory_is_in_the_state(feedback: Feedback, codec: Codec) -> None:
    """A checkpoint is the state: a copy of it continues as the original does."""
    state = feedback.init(NUMEL)
    _run(feedback, codec, state, range(STEPS))
    copy = {key: buffer.clone() for key, buffer in state.items()}
    first = _run(feedback, codec, state, range(STEPS, 2 * STEPS))
    again = _run(feedback, codec, copy, range(STEPS, 2 * STEPS))
    require(torch.equal(first, again), "a copy of the state continues differently")


def nothing_is_lost(feedback: Feedback, codec: Codec) -> None:
    """What was put into the residual is what was sent, what is left, and what its decay forgot.

    A twin whose residual is emptied before every step shows what each step puts in.
    """
    state, twin = feedback.init(NUMEL), feedback.init(NUMEL)
    if "residual" not in state:
        return
    put_in, sent_in_all, forgotten = torch.zeros(3, NUMEL, dtype=torch.float64)
    for step in range(STEPS):
        x = _gradient(step)
        twin["residual"].zero_()
        put_in += feedback.before(x, twin, _info(x, step))
        forgotten += (1 - decay_of(feedback)) * state["residual"]
        sent = _sent(codec, feedback.before(x, state, _info(x, step)), step)
        sent_in_all += sent
        feedback.after(sent, state, sparse=codec.sparse)
        feedback.after(sent, twin, sparse=codec.sparse)
    missing = (put_in - sent_in_all - forgotten - state["residual"]).abs().max()
    bound = 1e-5 * max(1.0, float(put_in.abs().max()), float(sent_in_all.abs().max()))
    require(float(missing) <= bound, f"{float(missing):.3g} of an element is neither sent nor kept")


LAWS = (
    settings_are_a_frozen_value,
    buffers_begin_at_zero,
    arguments_are_untouched,
    all_memory_is_in_the_state,
    nothing_is_lost,
)
"""What ``check_feedback`` asks of a feedback with every codec."""


def _run(feedback: Feedback, codec: Codec, state: State, steps: range) -> Tensor:
    """Everything that is sent, one step after the other."""
    sent_by_step = []
    for step in steps:
        x = _gradient(step)
        sent = _sent(codec, feedback.before(x, state, _info(x, step)), step)
        feedback.after(sent, state, sparse=codec.sparse)
        sent_by_step.append(sent)
    return torch.stack(sent_by_step)


def _gradient(step: int) -> Tensor:
    return make("row-sparse" if step % 2 else "heavy-tailed", NUMEL, seed=step).clamp(-20, 20)


def _info(x: Tensor, step: int) -> StepInfo:
    return StepInfo(
        step, workers=2, gradient_norm=math.sqrt(float(x.square().sum())), learning_rate=0.1
    )


def _sent(codec: Codec, wanted: Tensor, step: int) -> Tensor:
    sent = torch.empty_like(wanted)
    codec.decode(codec.encode(wanted, seed=step), sent)
    return sent
