"""Labelled pictures, as every set of pictures has them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Pictures:
    """``pixels`` are (n, channels, height, width); ``labels`` are (n,), int64."""

    pixels: Tensor
    labels: Tensor

    def draw(self, rows: int, generator: torch.Generator) -> Pictures:
        """``rows`` of them by chance; one can come twice."""
        return self.choose(torch.randint(self.labels.numel(), (rows,), generator=generator))

    def choose(self, numbers: Tensor | slice) -> Pictures:
        return Pictures(self.pixels[numbers], self.labels[numbers])


@dataclass(frozen=True, slots=True)
class PictureSet:
    """Pictures to train on, and others to test with."""

    training: Pictures
    test: Pictures
