"""``make``: awkward tensors, of sizes at which blocks end and of kinds that break arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Generator, Tensor

from thinwire.errors import ThinwireError


def require(holds: bool, otherwise: str) -> None:
    """Raise AssertionError. Not an assert statement: those vanish under ``python -O``."""
    if not holds:
        raise AssertionError(otherwise)


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """Name ``subject`` in the message of an AssertionError."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{subject}: {error}") from error
    except ThinwireError as error:
        raise AssertionError(f"{subject}: {type(error).__name__}: {error}") from error


def require_frozen_value(settings: object) -> None:
    """Settings can be compared, hashed and shared, because they cannot change."""
    cls = type(settings)
    if not dataclasses.is_dataclass(cls):
        raise AssertionError("it is not a dataclass")
    fields = dataclasses.fields(cls)
    require(all(_is_fixed(settings, field.name) for field in fields), "its fields can be changed")
    again = cls(**{field.name: getattr(settings, field.name) for field in fields})
    require(again == settings, "the same settings make another value")
    require(hash(again) == hash(settings), "an equal value has another hash")


def _is_fixed(settings: object, name: str) -> bool:
    try:
        setattr(settings, name, getattr(settings, name))
    except dataclasses.FrozenInstanceError:
        return True
    return False


SIZES = (0, 1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 257, 1000, 4096, 4099)
"""Numbers of elements around those at which bytes, words, runs and blocks end."""


def _normal(numel: int, chance: Generator) -> Tensor:
    return torch.randn(numel, generator=chance)


def _heavy_tailed(numel: int, chance: Generator) -> Tensor:
    ratio = torch.randn(numel, generator=chance) / torch.randn(numel, generator=chance)
    return ratio.nan_to_num().clamp(-1e6, 1e6)


def _one_hot(numel: int, chance: Generator) -> Tensor:
    del chance
    return torch.nn.functional.pad(torch.ones(min(numel, 1)), (max(numel - 1, 0), 0))


def _signed_zeros(numel: int, chance: Generator) -> Tensor:
    x = torch.randn(numel, generator=chance)
    return torch.where(torch.rand(numel, generator=chance) < 0.5, x, torch.tensor(-0.0))


def _zero_rows(numel: int, chance: Generator) -> Tensor:
    row = torch.arange(numel) // 64
    return torch.randn(numel, generator=chance) * (row % 3 == 1)


KINDS: Mapping[str, Callable[[int, Generator], Tensor]] = {
    "normal": _normal,
    "heavy-tailed": _heavy_tailed,
    "zero": lambda numel, _: torch.zeros(numel),
    "one-hot": _one_hot,
    "constant": lambda numel, _: torch.full((numel,), 0.1),
    "negative": lambda numel, chance: -torch.rand(numel, generator=chance),
    "subnormal": lambda numel, chance: 1e-40 * torch.randn(numel, generator=chance),
    "huge": lambda numel, chance: 3e38 * (2 * torch.rand(numel, generator=chance) - 1),
    "half minus zero": _signed_zeros,
    "row-sparse": _zero_rows,
}
"""Kinds of gradients, each by its number of elements and where chance comes from."""


def make(kind: str, numel: int, *, seed: int) -> Tensor:
    """A tensor of that kind; the same arguments, the same tensor."""
    return KINDS[kind](numel, torch.Generator().manual_seed(seed))
