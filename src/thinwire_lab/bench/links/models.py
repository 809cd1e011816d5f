"""``Workload``: the networks whose gradients the benchmark of links exchanges.

One is computed in full. Of the others there are only the shapes: their gradients are synthetic, and
come in the order and with the pauses that backward through such a network would make.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from thinwire_lab.bench.synthetic import like_gradient, make_pace, synthetic_gradient

LINEAR, RESNET50, BERT = "linear", "resnet50", "bert"
MODELS = (LINEAR, RESNET50, BERT)
LAYERS = 24

BACKWARD_MS = {LINEAR: 0.0, RESNET50: 60.0, BERT: 150.0}
"""Of synthetic gradients: about what an accelerator of 2017 takes for a batch of 32. Assumed, not
measured here."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A parameter, and how many multiplications its gradient takes for one sample."""

    dims: tuple[int, ...]
    work: float = 0.0

    @property
    def numel(self) -> int:
        return math.prod(self.dims)


def shapes_of(model: str, width: int) -> list[Shape]:
    """In the order of forward. ``width`` is that of LINEAR."""
    shapes: dict[str, Callable[[], Iterator[Shape]]]
    shapes = {LINEAR: partial(_linear_layers, width), RESNET50: _resnet50, BERT: _bert}
    return list(shapes[model]())


def _linear_layers(width: int) -> Iterator[Shape]:
    for _ in range(LAYERS):
        yield from _linear(width, width)


def _linear(outputs: int, inputs: int) -> Iterator[Shape]:
    yield Shape((outputs, inputs), outputs * inputs)
    yield Shape((outputs,))


def _resnet50() -> Iterator[Shape]:
    """Of images of 224 x 224 and 1000 classes: 25 557 032 parameters."""
    yield from _convolution(64, 3, 7, side=112)
    channels, side = 64, 56
    for blocks, inner in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            halved = block == 0 and inner > 64
            yield from _convolution(inner, channels, 1, side=side)
            side = side // 2 if halved else side
            yield from _convolution(inner, inner, 3, side=side)
            yield from _convolution(4 * inner, inner, 1, side=side)
            if block == 0:
                yield from _convolution(4 * inner, channels, 1, side=side)
            channels = 4 * inner
    yield from _linear(1000, channels)


def _convolution(outputs: int, inputs: int, kernel: int, *, side: int) -> Iterator[Shape]:
    """With the batch normalisation after it. ``side`` is that of its output."""
    dims = (outputs, inputs, kernel, kernel)
    yield Shape(dims, math.prod(dims) * side**2)
    yield from _normalisation(outputs)


def _normalisation(channels: int) -> Iterator[Shape]:
    yield Shape((channels,))
    yield Shape((channels,))


def _bert() -> Iterator[Shape]:
    """BERT-base, uncased: 109 482 240 parameters. Embeddings take no time worth mentioning."""
    hidden = 768
    for rows in (30522, 512, 2):
        yield Shape((rows, hidden))
    yield from _normalisation(hidden)
    for _ in range(12):
        for _ in range(4):
            yield from _linear(hidden, hidden)
        yield from _normalisation(hidden)
        yield from _linear(4 * hidden, hidden)
        yield from _linear(hidden, 4 * hidden)
        yield from _normalisation(hidden)
    yield from _linear(hidden, hidden)


class Workload(Protocol):
    """What one host computes. All its networks share the memory of their weights."""

    def network(self) -> nn.Module:
        """A network with its own parameters, which share their memory with the others."""

    def loss(self, model: nn.Module) -> Tensor:
        """Forward through one of the networks, or what is wrapped around it."""


class Computed:
    """LAYERS x Linear(width, width), forward and backward in full."""

    def __init__(self, width: int, batch: int, *, rank: int) -> None:
        self._width = width
        generator = torch.Generator().manual_seed(1 + rank)
        self._inputs = torch.randn(batch, width, generator=generator)
        torch.manual_seed(1)
        self._weights = self._layers().state_dict()

    def network(self) -> nn.Module:
        with torch.device("meta"):
            net = self._layers()
        net.load_state_dict(self._weights, assign=True)
        return net

    def loss(self, model: nn.Module) -> Tensor:
        outputs: Tensor = model(self._inputs)
        return outputs.square().mean()

    def _layers(self) -> nn.Sequential:
        return nn.Sequential(*(nn.Linear(self._width, self._width) for _ in range(LAYERS)))


class Shaped:
    """Synthetic gradients of some shapes, and a backward of a set duration.

    Its time is shared among parameters by the multiplications for each.
    """

    def __init__(self, shapes: list[Shape], seconds: float, backward: str, *, rank: int) -> None:
        generator = torch.Generator().manual_seed(1 + rank)
        self._weights = [torch.zeros(shape.dims) for shape in shapes]
        self._gradients = [like_gradient(weight, generator) for weight in self._weights]
        total = sum(shape.work for shape in shapes)
        self._seconds = [seconds * shape.work / total for shape in shapes]
        self._backward = backward

    def network(self) -> nn.Module:
        parameters = [nn.Parameter(weight) for weight in self._weights]
        return _SyntheticModule(parameters, self._gradients, self._seconds, self._backward)

    def loss(self, model: nn.Module) -> Tensor:
        loss: Tensor = model()
        return loss


class _SyntheticModule(nn.Module):
    def __init__(
        self,
        parameters: list[nn.Parameter],
        gradients: list[Tensor],
        seconds: list[float],
        backward: str,
    ) -> None:
        super().__init__()
        self.all = nn.ParameterList(parameters)
        self._gradients, self._seconds = gradients, seconds
        self._pace = make_pace(backward)

    def forward(self) -> Tensor:
        """Backward begins when this returns, and goes from the last parameter to the first."""
        parts = zip(self.all, self._gradients, self._seconds, strict=True)
        outputs = [
            synthetic_gradient(p, gradient, partial(self._pace.spend, s))
            for p, gradient, s in parts
        ]
        self._pace.begin()
        return torch.stack(outputs).sum()
