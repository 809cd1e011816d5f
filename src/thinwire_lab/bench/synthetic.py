"""``synthetic_gradient``: one that autograd hands over after its share of the backward's time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

BACKWARDS = ("sleep", "compute")

_MATRIX = 64
"""Rows of the matrices that a computing backward multiplies: they stay in the cache."""


class Pace(Protocol):
    """Lets the time of a backward pass."""

    def begin(self) -> None:
        """Backward begins now."""

    def spend(self, seconds: float) -> None: ...


class Sleeping:
    """Sleeps, as a worker does while its accelerator computes."""

    def __init__(self) -> None:
        self._awake = 0.0

    def begin(self) -> None:
        self._awake = time.perf_counter()

    def spend(self, seconds: float) -> None:
        """Sleep until this is due: an accelerator computes while the processor does other work."""
        self._awake += seconds
        left = self._awake - time.perf_counter()
        if left > 0:
            time.sleep(left)


class Computing:
    """Uses so much processor time, as training on processors does."""

    def begin(self) -> None:
        self._matrix = torch.ones(_MATRIX, _MATRIX)

    def spend(self, seconds: float) -> None:
        ends = time.thread_time() + seconds
        while time.thread_time() < ends:
            torch.mm(self._matrix, self._matrix)


def make_pace(backward: str) -> Pace:
    """One of BACKWARDS."""
    paces: dict[str, Callable[[], Pace]] = {"sleep": Sleeping, "compute": Computing}
    return paces[backward]()


def like_gradient(parameter: Tensor, generator: torch.Generator) -> Tensor:
    """Random values with heavier tails than a normal distribution, as gradients have."""
    x = torch.empty(parameter.shape).normal_(generator=generator)
    return x.mul_(x.abs().add_(1)).mul_(1e-3)


def synthetic_gradient(parameter: Tensor, gradient: Tensor, work: Callable[[], None]) -> Tensor:
    """Zero; backward through it does ``work``, and then ``parameter`` has this gradient."""
    apply: Callable[..., Tensor] = _SyntheticGradient.apply
    return apply(parameter, gradient, work)


class _SyntheticGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, parameter: Tensor, gradient: Tensor, work: Callable[[], None]
    ) -> Tensor:
        ctx.synthetic = gradient, work  # type: ignore[attr-defined]  # contexts are for this
        return torch.zeros(())

    @staticmethod
    def backward(ctx: FunctionCtx, *_: Tensor) -> tuple[Tensor, None, None]:
        gradient, work = ctx.synthetic  # type: ignore[attr-defined]  # see forward
        work()
        # Another tensor with the same memory, which autograd takes as it is and does not copy.
        return gradient.detach(), None, None
