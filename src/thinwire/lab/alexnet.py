"""A small network in the manner of AlexNet: few convolutions, most parameters in wide layers.

Such networks gain most from compression: many bytes of gradient for little computing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from thinwire.lab.data.cifar import CHANNELS, CLASSES
from thinwire.settings import check_whole


@dataclass(frozen=True, slots=True)
class AlexNetSettings:
    """``hidden`` is the width of the two layers before the last."""

    hidden: int = 512

    def __post_init__(self) -> None:
        check_whole(self.hidden, least=1, owner="AlexNetSettings", field="hidden")

    def make(self) -> nn.Module:
        return AlexNet(self)


class AlexNet(nn.Module):
    """Logits of ten classes for colour pictures of 32 by 32; by default 1,444,426 parameters."""

    def __init__(self, settings: AlexNetSettings) -> None:
        super().__init__()
        hidden = settings.hidden
        self.features = nn.Sequential(
            nn.Conv2d(CHANNELS, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classes = nn.Sequential(
            nn.Flatten(),
            nn.Linear(128 * 4 * 4, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, CLASSES),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.classes(self.features(pixels))
        return logits
