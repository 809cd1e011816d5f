"""``plain_`` and ``tuned_`` functions: the work of the kernels in torch's own operations.

``plain`` functions follow the formulas, as one would write them first. ``tuned`` ones are as fast
as we could make them: they work in place, keep their scratch memory between calls and avoid what
torch does slowly. Both give what a receiver needs, and leave the right residual behind. Sizes
are multiples of 8.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

Sparse = tuple[Tensor, Tensor]
"""Indices and values."""

_POWERS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
# Eight bytes that are 0 or 1, times this: bit i of the highest byte is byte i.
_GATHER_BITS = 0x0102040810204080


def plain_onebit_step(gradient: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    residual += gradient
    scale = residual.abs().mean()
    bits = (residual < 0).to(torch.uint8).view(-1, 8)
    packed = (bits * _POWERS).sum(1, dtype=torch.uint8)
    residual -= residual.sign() * scale
    return scale, packed


def tuned_onebit_step(gradient: Tensor, residual: Tensor, scratch: Tensor) -> tuple[Tensor, Tensor]:
    residual.add_(gradient)
    # vector_norm would save a pass, but adds up in one float32 and loses digits.
    scale = torch.abs(residual, out=scratch).mean()
    words = (residual < 0).view(torch.int64)
    packed = words.mul_(_GATHER_BITS).bitwise_right_shift_(56).to(torch.uint8)
    residual.sub_(torch.sign(residual, out=scratch), alpha=float(scale))
    return scale, packed


def plain_onebit_momentum_step(
    gradient: Tensor, momentum: Tensor, residual: Tensor, factor: float
) -> tuple[Tensor, Tensor]:
    return plain_onebit_step(factor * momentum + (1 - factor) * gradient, residual)


def tuned_onebit_momentum_step(
    gradient: Tensor, momentum: Tensor, residual: Tensor, factor: float, scratch: Tensor
) -> tuple[Tensor, Tensor]:
    torch.lerp(gradient, momentum, factor, out=scratch)
    return tuned_onebit_step(scratch, residual, scratch)


def plain_topk(x: Tensor, k: int) -> Sparse:
    index = torch.topk(x.abs(), k).indices
    return index, x[index]


def tuned_topk(x: Tensor, k: int, scratch: Tensor) -> Sparse:
    """A threshold from a sample, and an exact cut of what passes it."""
    magnitude = torch.abs(x, out=scratch)
    candidates = (magnitude >= _low_threshold(magnitude, k)).nonzero().view(-1)
    if candidates.numel() < k:
        return plain_topk(x, k)
    index = candidates[torch.topk(magnitude[candidates], k, sorted=False).indices]
    return index, x[index]


def _low_threshold(magnitude: Tensor, k: int) -> Tensor:
    """A magnitude that somewhat more than k elements reach, most probably."""
    sample = magnitude[torch.randint(magnitude.numel(), (65536,))]
    hits = sample.numel() * k / magnitude.numel()
    rank = min(sample.numel(), int(hits + 4 * hits**0.5) + 1)
    return torch.topk(sample, rank).values[-1]


def plain_residual_topk(gradient: Tensor, residual: Tensor, k: int) -> Sparse:
    residual += gradient
    index, value = plain_topk(residual, k)
    residual[index] = 0.0
    return index, value


def tuned_residual_topk(gradient: Tensor, residual: Tensor, k: int, scratch: Tensor) -> Sparse:
    index, value = tuned_topk(residual.add_(gradient), k, scratch)
    residual.index_fill_(0, index, 0.0)
    return index, value


def plain_dgc_step(
    gradient: Tensor, velocity: Tensor, residual: Tensor, k: int, momentum: float
) -> Sparse:
    velocity *= momentum
    velocity += gradient
    index, value = plain_residual_topk(velocity, residual, k)
    velocity[index] = 0.0
    return index, value


def tuned_dgc_step(
    gradient: Tensor,
    velocity: Tensor,
    residual: Tensor,
    k: int,
    momentum: float,
    scratch: Tensor,
) -> Sparse:
    # One pass instead of two: velocity = gradient + momentum * velocity.
    torch.add(gradient, velocity, alpha=momentum, out=velocity)
    index, value = tuned_residual_topk(velocity, residual, k, scratch)
    velocity.index_fill_(0, index, 0.0)
    return index, value


def adamw(
    param: Tensor, gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, fused: bool
) -> Optimizer:
    """torch's own optimizer on these tensors, the next step being its tenth."""
    parameter = torch.nn.Parameter(param)
    parameter.grad = gradient
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.01, fused=fused)
    step = torch.tensor(9.0)
    optimizer.state[parameter] = {"step": step, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    return optimizer


def plain_dither(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    scale = x.abs().max()
    codes = torch.floor(x / scale * _levels(bits) + torch.rand_like(x)).to(torch.int8)
    return scale, _pack_columns(codes, bits)


def _levels(bits: int) -> int:
    return (1 << (bits - 1)) - 1


def _pack_columns(codes: Tensor, bits: int) -> Tensor:
    """``bits`` (2, 4 or 8) of every code, next to each other."""
    columns = codes.view(torch.uint8).view(-1, 8 // bits) & ((1 << bits) - 1)
    packed = columns[:, 0].clone()
    for i in range(1, 8 // bits):
        packed |= columns[:, i] << (bits * i)
    return packed


def tuned_dither(x: Tensor, bits: int, scratch: Tensor) -> tuple[Tensor, Tensor]:
    low, high = torch.aminmax(x)
    scale = torch.maximum(-low, high)
    codes = scratch.uniform_().add_(x, alpha=_levels(bits) / float(scale)).floor_()
    return scale, _pack_words(codes.to(torch.int8), bits)


def _pack_words(codes: Tensor, bits: int) -> Tensor:
    """The same as ``_pack_columns``, on all codes of a byte at once."""
    if bits == 8:
        return codes
    words = codes.view({4: torch.int16, 2: torch.int32}[bits])
    packed = words & ((1 << bits) - 1)
    for i in range(1, 8 // bits):
        packed |= (words >> ((8 - bits) * i)) & (((1 << bits) - 1) << (bits * i))
    return packed.to(torch.uint8)
