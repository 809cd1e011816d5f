"""A network whose gradients are given: it trains nothing, and its backward takes as long as asked.

So a benchmark of exchanges measures exchanges, on gradients that arrive as real ones do: layer by
layer, the last one first, while backward goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from thinwire.errors import ConfigError
from thinwire.settings import check_choice, check_whole

LAYERS = 24
BACKWARDS = ("sleep", "compute")

_MATRIX = 64
"""Rows of the matrices that a computing backward multiplies: they stay in the cache."""


@dataclass(frozen=True, slots=True)
class Given:
    """About ``numel`` parameters in 24 layers, each a square matrix and a vector.

    A backward of ``backward_ms`` sleeps, as a worker does while its accelerator computes, or
    computes until it has used so much processor time.
    """

    numel: int = 1_000_000
    backward_ms: float = 0.0
    backward: str = "sleep"

    def __post_init__(self) -> None:
        check_whole(self.numel, least=LAYERS * 2, owner="bench", field="numel")
        check_choice(self.backward, BACKWARDS, owner="bench", field="backward")
        if not 0.0 <= self.backward_ms < math.inf:
            raise ConfigError(f"bench: backward_ms must be 0 or more, got {self.backward_ms}")

    @property
    def width(self) -> int:
        """Of each layer, so that matrices and vectors together are about ``numel``."""
        return max(1, (math.isqrt(1 + 4 * self.numel // LAYERS) - 1) // 2)

    @property
    def nbytes(self) -> int:
        """Of all gradients, in float32."""
        return 4 * LAYERS * self.width * (self.width + 1)

    def seconds(self, steps: int) -> float:
        """Of the backward of so many steps."""
        return steps * self.backward_ms / 1e3


class GivenNetwork(nn.Module):
    """``backward()`` leaves this worker's gradients in the parameters, by way of autograd."""

    def __init__(self, given: Given, *, rank: int) -> None:
        super().__init__()
        width = given.width
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        generator = torch.Generator().manual_seed(1 + rank)
        self._gradients = [_gradient(p, generator) for p in self.parameters()]
        self._seconds = given.backward_ms / 1e3 / LAYERS
        self._pass_time = {"sleep": self._sleep, "compute": self._compute}[given.backward]
        self._awake = 0.0
        for parameter in self.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def backward(self) -> None:
        """Forget the old gradients, and make the same ones again. Their memory stays."""
        self.zero_grad(set_to_none=False)
        self._awake = time.perf_counter()
        apply: Callable[..., Tensor] = _GivenGradient.apply
        outputs = [
            apply(parameter, gradient, self._work_before(parameter))
            for parameter, gradient in zip(self.parameters(), self._gradients, strict=True)
        ]
        torch.stack(outputs).sum().backward()  # type: ignore[no-untyped-call]

    def _work_before(self, parameter: Tensor) -> Callable[[], None]:
        """Matrices take the time; vectors come with them."""
        return self._pass_time if parameter.dim() > 1 and self._seconds else _do_nothing

    def _sleep(self) -> None:
        """Until this layer is due: an accelerator does not wait for what is done meanwhile."""
        self._awake += self._seconds
        time.sleep(max(0.0, self._awake - time.perf_counter()))

    def _compute(self) -> None:
        ends = time.thread_time() + self._seconds
        matrix = torch.ones(_MATRIX, _MATRIX)
        while time.thread_time() < ends:
            torch.mm(matrix, matrix)


def _gradient(parameter: Tensor, generator: torch.Generator) -> Tensor:
    """Heavier tails than a normal distribution has, as gradients have them."""
    x = torch.empty(parameter.shape).normal_(generator=generator)
    return x.mul_(x.abs().add_(1)).mul_(1e-3)


def _do_nothing() -> None:
    pass


class _GivenGradient(torch.autograd.Function):
    """Nothing forward; backward a gradient that is there already, after some work."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, parameter: Tensor, gradient: Tensor, work: Callable[[], None]
    ) -> Tensor:
        ctx.given = gradient, work  # type: ignore[attr-defined]  # contexts are for this
        return torch.zeros(())

    @staticmethod
    def backward(ctx: FunctionCtx, *_: Tensor) -> tuple[Tensor, None, None]:
        gradient, work = ctx.given  # type: ignore[attr-defined]  # see forward
        work()
        return gradient, None, None
