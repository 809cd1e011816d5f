"""``Buffers``: the memory of a kernel benchmark, of the same kind for every case to be fair."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire import _native
from thinwire.codec.dense import bytes_of
from thinwire.codec.policy import BLOCK
from thinwire.codec.sign import OneBit
from thinwire.codec.sparse import Nonzero
from thinwire.gradient import pages

MOMENTUM = 0.9
RATIO = 0.001
# Of the tenth step of ``torch_ops.adamw``.
ADAM = {
    "decay": 1 - 1e-3 * 0.01,
    "eps": 1e-8,
    "step_size": 1e-3 / (1 - 0.9**10),
    "correction2_sqrt": (1 - 0.999**10) ** 0.5,
    "l2": 0.0,
}


@dataclass(frozen=True, slots=True)
class Buffers:
    """Flat float32 tensors of one size; cases only read ``gradient``, ``sparse`` and ``momentum``.

    Cases that do the same work share their state, and make the next step in turn.
    """

    gradient: Tensor
    sparse: Tensor  # the largest 1 % of the gradient, the rest zero
    out: Tensor  # copied to and added to
    scratch: Tensor  # what tuned torch code would keep between steps
    momentum: Tensor  # that travels with the gradient
    answer: Tensor  # the same after a compressed step of Adam: one magnitude in each run
    runs: memoryview  # its sign runs
    wanted: Tensor  # the lazy residual of 1-bit steps
    wanted_carried: Tensor  # that of steps with a momentum
    wanted_runs: Tensor  # that of steps with its sign runs
    wanted_sum: Tensor  # that of a server
    sign_residual: Tensor  # 1-bit in torch, which keeps it as it is
    topk_residual: Tensor
    chunk_residual: Tensor
    dgc_velocity: Tensor
    dgc_residual: Tensor
    param: Tensor  # and its two means, for Adam
    exp_avg: Tensor
    exp_avg_sq: Tensor
    room: memoryview  # for payloads: every encoder writes to its front

    @property
    def numel(self) -> int:
        return self.gradient.numel()


def make_buffers(numel: int) -> Buffers:
    gradient = _gradient(numel)
    answer = _answer(gradient.flip(0))
    return Buffers(
        gradient=gradient,
        sparse=_largest(gradient, ratio=0.01),
        out=_zeros(numel),
        scratch=_zeros(numel),
        momentum=_zeros(numel).copy_(gradient.flip(0)),
        answer=answer,
        runs=_sign_runs(answer),
        wanted=_zeros(numel),
        wanted_carried=_zeros(numel),
        wanted_runs=_zeros(numel),
        wanted_sum=_zeros(numel),
        sign_residual=_zeros(numel),
        topk_residual=_steady_residual(gradient, per_step=1.0),
        chunk_residual=_zeros(numel),
        dgc_velocity=_zeros(numel).add_(gradient, alpha=1 / (1 - MOMENTUM)),
        dgc_residual=_steady_residual(gradient, per_step=1 / (1 - MOMENTUM)),
        param=_zeros(numel).copy_(gradient),
        exp_avg=_zeros(numel).copy_(gradient),
        exp_avg_sq=_zeros(numel).addcmul_(gradient, gradient),
        room=bytes_of(_zeros(-(-Nonzero().max_nbytes(numel) // 4))),
    )


def _zeros(numel: int) -> Tensor:
    return pages.empty(numel).zero_()


def _gradient(numel: int) -> Tensor:
    """Random values with heavier tails than a normal distribution, as gradients have."""
    x = _zeros(numel).normal_(generator=torch.Generator().manual_seed(1))
    return x.mul_(x.abs().add_(1)).mul_(1e-3)


def _answer(momentum: Tensor) -> Tensor:
    out = _zeros(momentum.numel())
    OneBit(block=BLOCK).decode(OneBit(block=BLOCK).encode(momentum, seed=0), out)
    return out


def _sign_runs(momentum: Tensor) -> memoryview:
    """As a step of Adam writes them."""
    runs = bytearray(_native.sign_runs_nbytes(momentum.numel()))
    param, exp_avg, exp_avg_sq = (torch.zeros_like(momentum) for _ in range(3))
    if not _native.adam_momentum_step(
        param, momentum, exp_avg, exp_avg_sq, runs=runs, floor=0.1, block=BLOCK, limit=1.0, **ADAM
    ):
        raise AssertionError("an answer in one bit has runs of more than one magnitude")
    return memoryview(runs)


def _largest(x: Tensor, *, ratio: float) -> Tensor:
    threshold = _native.sampled_threshold(x, ratio, 1)
    return _zeros(x.numel()).add_(x).masked_fill_(x.abs() < threshold, 0.0)


def _steady_residual(gradient: Tensor, *, per_step: float) -> Tensor:
    """What thousands of top-k steps would leave behind.

    An element that grows by s a step is sent once in t / s steps, where t is the magnitude that
    gets sent, so its residual is anywhere between 0 and t. ``RATIO`` of all elements are sent in
    a step if t is the mean of s divided by ``RATIO``.
    """
    threshold = per_step * float(gradient.abs().mean()) / RATIO
    generator = torch.Generator().manual_seed(2)
    residual = _zeros(gradient.numel()).uniform_(0.0, threshold, generator=generator)
    return residual.mul_(gradient.sign())
