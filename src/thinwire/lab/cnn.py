"""A small convolutional network for grey pictures of 28 by 28: seconds per epoch on one core."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire.lab.data.fashion import CLASSES


@dataclass(frozen=True, slots=True)
class CNNSettings:
    """There is nothing to choose."""

    def make(self) -> nn.Module:
        return CNN()


class CNN(nn.Module):
    """Logits of ten classes; 9,226 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 7 * 7, CLASSES),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.layers(pixels)
        return logits


def build(*, seed: int) -> CNN:
    """A fresh network: the same seed, the same weights. Global generators stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return CNN()
