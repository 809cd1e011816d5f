"""``kernel_cases``: every family of native kernels as cases, over buffers of one size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from thinwire import _native
from thinwire.codec.chunk_topk import ChunkTopK
from thinwire.codec.policy import BLOCK
from thinwire.codec.randomk import RandomK
from thinwire.codec.topk import TopK
from thinwire.feedback.base import LARGEST
from thinwire_lab.bench.kernels import torch_ops
from thinwire_lab.bench.kernels.buffers import ADAM, MOMENTUM, RATIO, Buffers

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a benchmark.

    ``plain`` and ``tuned`` do the same work with torch (see ``torch_ops``); ``beside`` names the
    case that does the work which this one adds to. A case that runs on
    several ``threads`` names the case that does it on one in ``one_thread``. Work that returns a
    payload, which is a bytearray or a memoryview, has its bits counted; where the payload is sparse
    and ``value_nbytes`` says how long a value is, those of the indices too.
    """

    name: str
    work: Work
    plain: Work | None = None
    tuned: Work | None = None
    beside: str | None = None
    threads: int = 1
    one_thread: str | None = None
    value_nbytes: int | None = None

    def variants(self) -> dict[str, Work]:
        """All the work to time: ours and torch's."""
        named = {"ours": self.work, "plain": self.plain, "tuned": self.tuned}
        return {name: work for name, work in named.items() if work is not None}


MEMCPY = "memcpy"
"""The case that all others are measured against."""

_L1 = _native.SignScale.L1
_F32 = _native.Values.FLOAT32


def kernel_cases(b: Buffers, helper: ThreadPoolExecutor) -> list[Case]:
    """All cases. They change ``b``; ``helper`` is the second thread of memcpy on two."""
    families = (
        _memory(b, helper),
        _onebit(b),
        _topk(b),
        _sparse(b),
        _steps(b),
        _chunk_topk(b),
        _adam(b),
        _dither(b),
        _halves(b),
    )
    return [case for family in families for case in family]


def _memory(b: Buffers, helper: ThreadPoolExecutor) -> Iterator[Case]:
    yield Case(MEMCPY, lambda: b.out.copy_(b.gradient))
    yield Case("b += a", lambda: b.out.add_(b.gradient))
    yield Case("read (all finite)", lambda: _native.all_finite(b.gradient))
    yield Case("crc32c", partial(_native.crc32c, b.gradient.numpy().view(np.uint8).data))
    yield Case("memcpy, 2 threads", partial(_copy_by_two, b, helper), threads=2, one_thread=MEMCPY)


def _copy_by_two(b: Buffers, helper: ThreadPoolExecutor) -> None:
    # Not torch's OpenMP threads, which would go on spinning into the next case.
    (out, out2), (x, x2) = (t.tensor_split(2) for t in (b.out, b.gradient))
    half = helper.submit(out2.copy_, x2)
    out.copy_(x)
    half.result()


def _onebit(b: Buffers) -> Iterator[Case]:
    scales, sum_scales = torch.zeros(1), torch.zeros(1)
    lazy_sum = (b.wanted_sum, b.wanted_sum, sum_scales, sum_scales)
    encode = _encoder(b, _native.onebit_encode, b.gradient, _L1, 0)
    lazy = (b.wanted, b.wanted, scales, scales)
    step = _encoder(b, _native.onebit_step, b.gradient, *lazy, _L1, 0, 1.0, 1.0)
    payload = bytes(encode())
    pair = [payload, payload]
    yield Case(
        "1-bit step",
        step,
        plain=partial(torch_ops.plain_onebit_step, b.gradient, b.sign_residual),
        tuned=partial(torch_ops.tuned_onebit_step, b.gradient, b.sign_residual, b.scratch),
    )
    yield Case("1-bit step, 2 threads", step, threads=2, one_thread="1-bit step")
    yield from _onebit_with_momentum(b)
    yield Case("1-bit encode", encode)
    yield Case("1-bit decode", partial(_native.onebit_decode, payload, b.out))
    yield from _adds("1-bit", partial(_native.onebit_add, payload, b.out, 0.5))
    yield Case("1-bit sum of 2", partial(_native.onebit_sum, pair, 0.5, b.out))
    yield Case(
        "1-bit server, sum of 2",
        _encoder(b, _native.onebit_sum_step, pair, 0.5, *lazy_sum, _L1, 0, 1.0),
    )


def _onebit_with_momentum(b: Buffers) -> Iterator[Case]:
    """Read as floats, as that of SGD and of Adam after a full step is, and as bits."""
    scales, gain = torch.zeros(1), 1 - MOMENTUM
    lazy = (b.wanted_carried, b.wanted_carried, scales, scales)
    step = partial(_native.onebit_step, b.gradient, *lazy, _L1, 0, gain, 1.0)
    state = (b.gradient, b.momentum, b.sign_residual, MOMENTUM)
    yield Case(
        "1-bit step with momentum",
        _encoder(b, lambda room: step(room, b.momentum, MOMENTUM)),
        plain=partial(torch_ops.plain_onebit_momentum_step, *state),
        tuned=partial(torch_ops.tuned_onebit_momentum_step, *state, b.scratch),
    )
    run_scales = torch.zeros(1)
    lazy = (b.wanted_runs, b.wanted_runs, run_scales, run_scales)
    by_runs = partial(_native.onebit_step, b.gradient, *lazy, _L1, 0, gain, 1.0)
    state = (b.gradient, b.answer, b.sign_residual, MOMENTUM)
    yield Case(
        "1-bit step with Adam's momentum",
        _encoder(b, lambda room: by_runs(room, b.answer, MOMENTUM, 1.0, b.runs)),
        plain=partial(torch_ops.plain_onebit_momentum_step, *state),
        tuned=partial(torch_ops.tuned_onebit_momentum_step, *state, b.scratch),
        beside="1-bit step",
    )


def _encoder(
    b: Buffers, encode: Callable[..., int | tuple[int | None, float] | None], *arguments: object
) -> Callable[[], memoryview]:
    """Work that encodes into ``b.room``, and returns a view of the payload there."""

    def work() -> memoryview:
        written = encode(*arguments, b.room)
        nbytes = written[0] if isinstance(written, tuple) else written
        if nbytes is None:
            raise AssertionError("the benchmark's own gradient is not finite")
        return b.room[:nbytes]

    return work


def _adds(name: str, add: Work) -> Iterator[Case]:
    """Decode-add, on one thread and on two."""
    name = f"{name} add"
    yield Case(name, add)
    yield Case(f"{name}, 2 threads", add, threads=2, one_thread=name)


def _topk(b: Buffers) -> Iterator[Case]:
    x, sampled = b.gradient, _native.Select.SAMPLED
    for name, ratio in (("top-k 0.1 %", RATIO), ("top-k 1 %", 0.01)):
        k = TopK(ratio).kept(b.numel)
        yield Case(
            name,
            _encoder(b, _native.topk_encode, x, k, sampled, _F32),
            plain=partial(torch_ops.plain_topk, x, k),
            tuned=partial(torch_ops.tuned_topk, x, k, b.scratch),
            value_nbytes=4,
        )
    k = TopK(RATIO).kept(b.numel)
    radix = _native.Select.RADIX
    yield Case("top-k 0.1 %, radix", _encoder(b, _native.topk_encode, x, k, radix, _F32))
    for values in (_native.Values.FLOAT16, _native.Values.INT8):
        name = f"top-k 0.1 %, {values.name.lower()}"
        yield Case(name, _encoder(b, _native.topk_encode, x, k, sampled, values))


def _sparse(b: Buffers) -> Iterator[Case]:
    k = TopK(RATIO).kept(b.numel)
    sampled = _native.Select.SAMPLED
    payload = bytes(_encoder(b, _native.topk_encode, b.gradient, k, sampled, _F32)())
    pair = [payload, payload]
    yield Case("top-k 0.1 % add", partial(_native.sparse_add, payload, b.out, 0.5))
    yield Case("top-k 0.1 % sum of 2", partial(_native.sparse_sum, pair, 0.5, b.out))
    residual = 0.1 * b.gradient
    state = (residual, k, sampled, _F32, LARGEST**2, None)
    yield Case(
        "top-k 0.1 % server, sum of 2",
        _encoder(b, _native.topk_sum_step, pair, 0.5, *state),
    )
    yield Case("non-zero, of 1 %", _encoder(b, _native.nonzero_encode, b.sparse))
    yield Case("random-k 0.1 %", partial(RandomK(RATIO).encode, b.gradient, seed=7))


def _steps(b: Buffers) -> Iterator[Case]:
    k, sampled = TopK(RATIO).kept(b.numel), _native.Select.SAMPLED
    residual = (b.gradient, b.topk_residual, k)
    dgc = (b.gradient, b.dgc_velocity, b.dgc_residual, k)
    in_place = (b.dgc_velocity, b.dgc_velocity, b.dgc_residual, b.dgc_residual)
    yield Case(
        "top-k step",
        _encoder(
            b,
            _native.residual_topk,
            b.gradient,
            b.topk_residual,
            b.topk_residual,
            k,
            sampled,
            _F32,
            1.0,
            1.0,
        ),
        plain=partial(torch_ops.plain_residual_topk, *residual),
        tuned=partial(torch_ops.tuned_residual_topk, *residual, b.scratch),
    )
    setting = (k, sampled, _F32, 1.0, 1.0, MOMENTUM, False, True)
    step = _encoder(b, _native.dgc_topk, b.gradient, *in_place, *setting)
    yield Case(
        "DGC step",
        step,
        plain=partial(torch_ops.plain_dgc_step, *dgc, MOMENTUM),
        tuned=partial(torch_ops.tuned_dgc_step, *dgc, MOMENTUM, b.scratch),
    )
    yield Case("DGC step, 2 threads", step, threads=2, one_thread="DGC step")


def _chunk_topk(b: Buffers) -> Iterator[Case]:
    codec, state = ChunkTopK(), (b.gradient, b.chunk_residual, b.chunk_residual)
    step = _encoder(b, _native.chunk_topk_step, *state, codec.ratio, codec.bits, 1.0, 0.95)
    payload = bytes(step())
    yield Case("chunk top-k step", step)
    yield Case("chunk top-k step, 2 threads", step, threads=2, one_thread="chunk top-k step")
    yield Case("chunk top-k add", partial(_native.chunk_topk_add, payload, b.out, 0.5))


def _adam(b: Buffers) -> Iterator[Case]:
    tensors = (b.param, b.gradient, b.exp_avg, b.exp_avg_sq)
    step = partial(_native.adam_step, *tensors, beta1=0.9, beta2=0.999, **ADAM)
    fused = torch_ops.adamw(*tensors, fused=True).step
    plain = torch_ops.adamw(*tensors, fused=False).step
    yield Case("AdamW", step, plain=plain, tuned=fused)
    yield Case("AdamW, 2 threads", step, threads=2, one_thread="AdamW")
    # torch has nothing of the kind: beside what takes its place in training.
    by_momentum = partial(
        _native.adam_momentum_step,
        b.param,
        b.answer,
        b.exp_avg,
        b.exp_avg_sq,
        floor=0.1,
        block=BLOCK,
        limit=1.0,
        runs=b.runs,
        **ADAM,
    )
    yield Case("AdamW by momentum", by_momentum, tuned=fused)


def _dither(b: Buffers) -> Iterator[Case]:
    linear, natural = _native.Levels.LINEAR, _native.Levels.NATURAL
    largest, euclid = _native.Norm.MAX, _native.Norm.L2
    for bits in (2, 4, 8):
        encode = _encoder(b, _native.dither_encode, b.gradient, bits, linear, largest, 7)
        yield Case(
            f"dither {bits} bit",
            encode,
            plain=partial(torch_ops.plain_dither, b.gradient, bits),
            tuned=partial(torch_ops.tuned_dither, b.gradient, bits, b.scratch),
        )
        payload = bytes(encode())
        yield Case(f"dither {bits} bit add", partial(_native.dither_add, payload, b.out, 0.5))
    for name, levels, norm in (("natural", natural, largest), ("l2 norm", linear, euclid)):
        work = _encoder(b, _native.dither_encode, b.gradient, 4, levels, norm, 7)
        yield Case(f"dither 4 bit, {name}", work)


def _halves(b: Buffers) -> Iterator[Case]:
    for kind, dtype in (
        (_native.Half.FLOAT16, torch.float16),
        (_native.Half.BFLOAT16, torch.bfloat16),
    ):
        yield from _half(b, kind, torch.empty(b.numel, dtype=dtype))


def _half(b: Buffers, kind: _native.Half, kept: Tensor) -> Iterator[Case]:
    name, encode = kind.name.lower(), _encoder(b, _native.half_encode, kind, b.gradient)
    payload = bytes(encode())
    yield Case(
        f"{name} encode",
        encode,
        plain=lambda: b.gradient.to(kept.dtype),
        tuned=lambda: kept.copy_(b.gradient),
    )
    yield Case(f"{name} add", partial(_native.half_add, kind, payload, b.out, 0.5))
