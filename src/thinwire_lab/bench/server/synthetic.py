"""``SyntheticNetwork``: it trains nothing, and its backward takes as long as its settings say.

A benchmark of exchanges then measures exchanges alone, on gradients that arrive as real ones do:
layer by layer, the last one first, while backward goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from thinwire.checks import check_choice, check_whole
from thinwire.errors import ConfigError
from thinwire_lab.bench.synthetic import BACKWARDS, like_gradient, make_pace, synthetic_gradient
from thinwire_lab.seeding import seeded

LAYERS = 24


@dataclass(frozen=True, slots=True)
class SyntheticModel:
    """About ``numel`` parameters in 24 layers, each a square matrix and a vector.

    A backward of ``backward_ms`` sleeps, as a worker does while its accelerator computes, or
    computes for that much processor time.
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


class SyntheticNetwork(nn.Module):
    """``backward()`` hands this worker's gradients to the parameters through autograd.

    An exchange overwrites them with the mean, so they are copied first, into ``rooms``. That copy
    is all that a backward of no time costs.
    """

    def __init__(self, model: SyntheticModel, *, rank: int) -> None:
        super().__init__()
        width = model.width
        with seeded(1):  # servers require the same weights of all workers
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        generator = torch.Generator().manual_seed(1 + rank)
        self._gradients = [like_gradient(p, generator) for p in self.parameters()]
        self.rooms = {p: torch.empty_like(p) for p in self.parameters()}
        self._seconds = model.backward_ms / 1e3 / LAYERS
        self._pace = make_pace(model.backward)

    def backward(self) -> None:
        """Hand over the same gradients again, each copied into its room."""
        self.zero_grad()
        self._pace.begin()
        outputs = [
            synthetic_gradient(
                parameter, self.rooms[parameter], partial(self._write, parameter, gradient)
            )
            for parameter, gradient in zip(self.parameters(), self._gradients, strict=True)
        ]
        torch.stack(outputs).sum().backward()  # type: ignore[no-untyped-call]

    def _write(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Matrices take the time; vectors come with them."""
        self._pace.spend(self._seconds if parameter.dim() > 1 else 0.0)
        self.rooms[parameter].copy_(gradient)
