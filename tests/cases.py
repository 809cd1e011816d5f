"""What the laws run over: every codec setting with a branch of its own, and chains of feedback."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings, strategies as st
from torch import Tensor

import thinwire as tw
from thinwire.codec.base import Codec
from thinwire.feedback.base import Feedback
from thinwire.testing.tensors import KINDS, make

CODECS: tuple[Codec, ...] = (
    tw.Float32(),
    tw.Float16(),
    tw.BFloat16(),
    tw.OneBit(),
    tw.OneBit("l2"),
    tw.OneBit(stretch=1.5),
    tw.OneBit(block=64),
    tw.OneBit("l2", block=128),
    tw.OneBit(block=4096),
    tw.TopK(0.01),
    tw.TopK(0.25, select="exact"),
    tw.TopK(1.0),
    tw.TopK(0.1, values="float16"),
    tw.TopK(0.3, values="int8"),
    tw.TopK(1.0, values="int8", select="exact"),
    tw.ChunkTopK(),
    tw.ChunkTopK(0.3),
    tw.ChunkTopK(1 / 16, values="4bit"),
    tw.ChunkTopK(1.0, values="4bit"),
    tw.Nonzero(),
    tw.RandomK(0.05),
    tw.RandomK(1.0),
    *(tw.Dither(bits) for bits in range(1, 9)),
    *(tw.Dither(bits, levels="natural") for bits in range(1, 9)),
    *(tw.Dither(bits, norm="l2") for bits in range(2, 9)),
    *(tw.Dither(bits, levels="natural", norm="l2") for bits in (2, 4, 8)),
)

RESIDUAL_CHAINS: tuple[Feedback, ...] = (
    tw.Residual(),
    tw.Residual(rescale=True),
    tw.Residual(decay=0.9),
    tw.Residual(rescale=True, decay=0.5),
    tw.chain(tw.Clip(1.0), tw.Residual()),
    tw.chain(tw.Momentum(0.9), tw.Residual()),
    tw.chain(tw.Momentum(0.9, nesterov=True), tw.Residual()),
    tw.chain(tw.Momentum(0.5, mask=False), tw.Residual(rescale=True)),
    tw.chain(tw.Momentum(0.5), tw.Residual(decay=0.95)),
    tw.chain(
        tw.Clip(1.0, scope="tensor"), tw.Momentum(0.9, nesterov=True, mask=False), tw.Residual()
    ),
)
FEEDBACKS: tuple[Feedback, ...] = (
    tw.NoFeedback(),
    tw.Momentum(0.9),
    tw.chain(tw.Clip(1.0), tw.Momentum(0.9, nesterov=True)),
    tw.chain(),
    *RESIDUAL_CHAINS,
)

ISAS = ("scalar", "avx2", "avx512", "neon")

laws = settings(
    deadline=None,  # how long an example takes says nothing about the law
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal in every bit: 0.0 is not -0.0, and a nan is itself."""
    bits = torch.int64 if a.dtype == torch.float64 else torch.int32
    return a.dtype == b.dtype and torch.equal(a.view(bits), b.view(bits))


def decoded(codec: Codec, payload: bytes | bytearray, numel: int) -> Tensor:
    out = torch.full((numel,), float("nan"))
    type(codec).decode(payload, out)
    return out


@st.composite
def tensors(draw: st.DrawFn, max_numel: int = 700) -> Tensor:
    """A finite tensor of any kind; its size and kind shrink, its elements follow from a seed."""
    numel = draw(st.integers(0, max_numel) | st.sampled_from([63, 64, 65, 128, 257, 512]))
    kind = draw(st.sampled_from(list(KINDS)))
    return make(kind, min(numel, max_numel), seed=draw(st.integers(0, 2**32 - 1)))


@st.composite
def gradients(draw: st.DrawFn, numel: int, steps: int) -> list[Tensor]:
    """Some steps' gradients of one tensor, of magnitudes that sums of them can hold."""
    kinds = st.sampled_from([kind for kind in KINDS if kind != "huge"])
    seed = draw(st.integers(0, 2**32 - 1))
    return [make(draw(kinds), numel, seed=seed + step) for step in range(steps)]
