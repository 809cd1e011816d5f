"""Convolutional networks: ``CNN`` for Fashion-MNIST, ``AlexNet`` and ``ResNet`` for CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.checks import check_whole
from thinwire.errors import ConfigError
from thinwire_lab.data.cifar import CHANNELS, CLASSES
from thinwire_lab.data.fashion import CLASSES as FASHION_CLASSES


@dataclass(frozen=True, slots=True)
class CNNSettings:
    """``width`` is that of the first layer; the second has twice as much."""

    width: int = 8

    def __post_init__(self) -> None:
        check_whole(self.width, least=1, owner="CNNSettings", field="width")

    def make(self) -> nn.Module:
        return CNN(self.width)


class CNN(nn.Module):
    """Logits of ten classes; by default 9,226 parameters, seconds per epoch on one core."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 7 * 7, FASHION_CLASSES),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.layers(pixels)
        return logits


def build_cnn(*, seed: int) -> CNN:
    """A fresh network: the same seed, the same weights. Global generators stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return CNN()


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


@dataclass(frozen=True, slots=True)
class ResNetSettings:
    """``depth`` is 6 n + 2: n blocks of two layers in each of three stages, of which the first is
    ``width`` channels wide, and each other twice as wide as the one before. He et al. have depths
    of 20, 32, 44, 56 and 110, and 16 channels."""

    depth: int = 20
    width: int = 16

    def __post_init__(self) -> None:
        check_whole(self.width, least=1, owner="ResNetSettings", field="width")
        check_whole(self.depth, least=8, owner="ResNetSettings", field="depth")
        if self.depth % 6 != 2:
            raise ConfigError(f"ResNetSettings: depth must be 6 n + 2, got {self.depth}")

    def make(self) -> nn.Module:
        blocks = (self.depth - 2) // 6
        widths = (self.width, 2 * self.width, 4 * self.width)
        return ResNet([(width, blocks) for width in widths], projected=False)


@dataclass(frozen=True, slots=True)
class ResNet18Settings:
    """ResNet-18 with a first layer for pictures of 32 by 32: four stages of two blocks, 64 to 512
    channels wide. Shortcuts that change the shape are learned."""

    width: int = 64

    def __post_init__(self) -> None:
        check_whole(self.width, least=1, owner="ResNet18Settings", field="width")

    def make(self) -> nn.Module:
        return ResNet([(self.width * 2**stage, 2) for stage in range(4)], projected=True)


class ResNet(nn.Module):
    """Logits of ten classes. Each of ``stages`` is (channels, blocks); all but the first begin by
    halving the side."""

    def __init__(self, stages: list[tuple[int, int]], *, projected: bool) -> None:
        super().__init__()
        width = stages[0][0]
        self.first = nn.Conv2d(CHANNELS, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        for number, (channels, count) in enumerate(stages):
            for place in range(count):
                stride = 2 if number and not place else 1
                blocks.append(Block(width, channels, stride=stride, projected=projected))
                width = channels
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, CLASSES)
        _initialise(self)

    def forward(self, pixels: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.first(pixels)))
        logits: Tensor = self.head(self.blocks(x).mean(dim=(2, 3)))
        return logits


class Block(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, projected: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride=stride, projected=projected)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return functional.relu(y + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, *, stride: int, projected: bool) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    if not projected:
        return Padded(outputs - inputs, stride)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
    )


class Padded(nn.Module):
    """He et al.'s option A: every ``stride``-th pixel, and ``more`` channels of zeros. It has no
    parameters."""

    def __init__(self, more: int, stride: int) -> None:
        super().__init__()
        self._more, self._stride = more, stride

    def forward(self, x: Tensor) -> Tensor:
        before = self._more // 2
        thinned = x[:, :, :: self._stride, :: self._stride]
        return functional.pad(thinned, (0, 0, 0, 0, before, self._more - before))


def _initialise(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
