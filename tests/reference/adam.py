"""Adam for one flat tensor in plain torch: one operation at a time, each rounded on its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor


class Factors(TypedDict):
    """What both steps take."""

    decay: float
    eps: float
    step_size: float
    correction2_sqrt: float
    l2: float


@dataclass
class Adam:
    """The tensors of a parameter. Both steps make new ones."""

    param: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor

    def step(
        self,
        gradient: Tensor,
        *,
        decay: float,
        beta1: float,
        beta2: float,
        eps: float,
        step_size: float,
        correction2_sqrt: float,
        l2: float,
    ) -> None:
        g = _with_l2(gradient, self.param, l2)
        difference = g - self.exp_avg
        self.exp_avg = self.exp_avg + difference * (1 - beta1)
        square = g * g
        self.exp_avg_sq = self.exp_avg_sq * beta2 + square * (1 - beta2)
        ratio = self._ratio(eps, correction2_sqrt)
        self.param = self.param * decay - ratio * step_size

    def momentum_step(
        self,
        momentum: Tensor,
        *,
        decay: float,
        eps: float,
        step_size: float,
        correction2_sqrt: float,
        l2: float,
        floor: float,
        block: int = 1024,
        limit: float = math.inf,
    ) -> None:
        self.exp_avg = _with_l2(momentum, self.param, l2)
        ratio = self._ratio(eps, correction2_sqrt, raised(self.exp_avg_sq, floor, block))
        ratio = ratio.clamp(-limit, limit)
        ratio = torch.where(self.exp_avg_sq == 0, torch.zeros(()), ratio)
        self.param = self.param * decay - ratio * step_size

    def _ratio(self, eps: float, correction2_sqrt: float, squares: Tensor | None = None) -> Tensor:
        squares = self.exp_avg_sq if squares is None else squares
        # In double: torch's own root of a float is often off by a bit where it comes from MKL.
        root = squares.double().sqrt().float() * (1.0 / torch.tensor(correction2_sqrt))
        denominator = root + eps
        return self.exp_avg / denominator


def _with_l2(x: Tensor, param: Tensor, l2: float) -> Tensor:
    return x + param * l2 if l2 else x.clone()


def raised(squares: Tensor, floor: float, size: int) -> Tensor:
    """At least this part of the mean of each block, which is summed in 16 lanes."""
    parts = []
    for start in range(0, squares.numel(), size):
        block = squares[start : start + size]
        lanes = torch.zeros(16)
        padded = torch.nn.functional.pad(block, (0, -block.numel() % 64))
        for row in padded.view(-1, 16):
            lanes = lanes + row
        mean = sum(lanes.double().tolist()) / block.numel()
        least = torch.tensor(mean * float(torch.tensor(floor)), dtype=torch.float64).float()
        parts.append(torch.maximum(block, least))
    return torch.cat(parts) if parts else squares
