"""Networks that use their parameters in all the ways that modules do."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.server.early import layers


class Tied(nn.Module):
    """Two modules with one weight, of which the second is called first."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(20, 20), nn.Linear(20, 20)
        self.first.weight = self.last.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x).tanh())
        return out


class Attention(nn.Module):
    """Reads ``out_proj.weight`` without a call."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(20, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x)[0]
        return out


class Rooted(nn.Module):
    """A parameter of its own, a child that is called twice, and one that is called now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(20))
        self.twice, self.seldom = nn.Linear(20, 20), nn.Linear(20, 20)
        self.never = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.twice(self.twice(x * self.scale))
        return x if self.calls % 3 else self.seldom(x)


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.rest, self.reentrant = nn.Linear(20, 20), layers(), use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.rest, self.first(x), use_reentrant=self.reentrant)
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(20, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(x)[0]
        return out


def weight_norm() -> nn.Module:
    net = layers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is old, and yet in use
        nn.utils.weight_norm(net[2])  # type: ignore[index]
    return net


def parametrized() -> nn.Module:
    net = layers()
    nn.utils.parametrizations.weight_norm(net[2])  # type: ignore[index]
    return net


def compiled() -> nn.Module:
    net = torch.compile(layers(), backend="eager")
    assert isinstance(net, nn.Module)
    return net


def compiled_inside() -> nn.Module:
    net = layers()
    net[2] = torch.compile(net[2], backend="eager")  # type: ignore[index, operator]
    return net


def compiled_in_place() -> nn.Module:
    net = layers()
    net[2].compile(backend="eager")  # type: ignore[index]
    return net


class Scale(nn.Module):
    """Not a product of matrices, which would be one of bfloat16 in autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(20))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Functional(nn.Module):
    """Uses a child's weight without calling the child."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.hidden = nn.Linear(20, 20), nn.Linear(20, 20)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.first(x), self.hidden.weight)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "attention": Attention,
    "encoder": lambda: nn.TransformerEncoderLayer(20, 2, 16, dropout=0.0),
    "rooted": Rooted,
    "checkpointed": lambda: Checkpointed(use_reentrant=False),
    "checkpointed, reentrant": lambda: Checkpointed(use_reentrant=True),
    "recurrent": Recurrent,
    "weight norm": weight_norm,
    "parametrized": parametrized,
    "compiled": compiled,
    "compiled inside": compiled_inside,
    "compiled in place": compiled_in_place,
}
