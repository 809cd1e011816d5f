"""A network whose gradients are given: it trains nothing, and its backward takes as long as asked.

So a benchmark of exchanges measures exchanges, on gradients that arrive as real ones do: layer by
layer, the last one first, while backward goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from thinwire.errors import ConfigError
from thinwire.lab.bench.given_gradient import BACKWARDS, give, like_gradient, make_pace
from thinwire.lab.chance import seeded
from thinwire.settings import check_choice, check_whole

LAYERS = 24


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
    """``backward()`` leaves this worker's gradients in the parameters, by way of autograd.

    An exchange writes the mean over them, so they are copied first, into ``rooms``. That is all
    that a backward of no time costs.
    """

    def __init__(self, given: Given, *, rank: int) -> None:
        super().__init__()
        width = given.width
        with seeded(1):  # servers want the same weights of all workers
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        generator = torch.Generator().manual_seed(1 + rank)
        self._gradients = [like_gradient(p, generator) for p in self.parameters()]
        self.rooms = {p: torch.empty_like(p) for p in self.parameters()}
        self._seconds = given.backward_ms / 1e3 / LAYERS
        self._pace = make_pace(given.backward)

    def backward(self) -> None:
        """Write the same gradients again, each into its room, and leave them in the parameters."""
        self.zero_grad()
        self._pace.begin()
        outputs = [
            give(parameter, self.rooms[parameter], partial(self._write, parameter, gradient))
            for parameter, gradient in zip(self.parameters(), self._gradients, strict=True)
        ]
        torch.stack(outputs).sum().backward()  # type: ignore[no-untyped-call]

    def _write(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Matrices take the time; vectors come with them."""
        self._pace.spend(self._seconds if parameter.dim() > 1 else 0.0)
        self.rooms[parameter].copy_(gradient)
