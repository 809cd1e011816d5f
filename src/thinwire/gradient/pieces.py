"""``Piece``: a bounded slice of a gradient, the unit of encoding, ownership and pipelining."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from thinwire.checks import check_whole
from thinwire.errors import ConfigError


@dataclass(frozen=True)  # without slots: numel is asked for many times in every step
class Key:
    """A gradient's identity. State is kept by ``name``: buckets, ranks and world sizes change."""

    name: str
    shape: tuple[int, ...]

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)


def flatten(gradient: Tensor) -> Tensor:
    """The gradient as a flat float32 CPU tensor: a view where it is one already."""
    if gradient.layout is not torch.strided or not gradient.dtype.is_floating_point:
        raise ConfigError(
            f"gradients must be dense and real, got {gradient.dtype} with layout {gradient.layout}"
        )
    return gradient.detach().to("cpu", torch.float32).reshape(-1).contiguous()


PIECE_NUMEL = 1 << 20
"""Elements of a piece: 4 MiB of float32, so that several are in flight at once."""

LEAST_PIECE_NUMEL = 1 << 16
"""Elements below which it does not pay to cut a gradient for the sake of more owners."""

BATCH_NUMEL = 1 << 23
"""Elements of a batch: a little more than DDP puts into a bucket. Smaller ones cost dense training
a twentieth of a step in messages and hand-overs; larger ones leave too few in flight."""

ALIGNMENT = 64
"""Pieces begin at multiples of this, so that 1-bit runs are those of the whole tensor."""


@dataclass(frozen=True)  # without slots: name and numel are asked for many times in every step
class Piece:
    """Elements ``start`` to ``stop`` of the flattened gradient ``key``."""

    key: Key
    start: int
    stop: int

    @classmethod
    def whole(cls, key: Key) -> Piece:
        return cls(key, 0, key.numel)

    @cached_property
    def numel(self) -> int:
        return self.stop - self.start

    @cached_property
    def name(self) -> str:
        """The gradient's name, with the range where it is only a part: ``fc.weight[0:1048576]``."""
        if self.numel == self.key.numel:
            return self.key.name
        return f"{self.key.name}[{self.start}:{self.stop}]"

    def __hash__(self) -> int:
        return hash(self.name)


def cut(keys: Iterable[Key], *, most_numel: int = PIECE_NUMEL) -> tuple[Piece, ...]:
    """Cut every gradient into pieces of about equal size, at most ``most_numel`` elements each.

    Never across gradients, and the same for every worker: it depends on names and shapes alone.
    """
    check_whole(most_numel, least=ALIGNMENT, owner="cut", field="most_numel")
    return tuple(piece for key in keys for piece in _cut_key(key, most_numel))


def piece_numel_for(keys: Iterable[Key], *, owners: int) -> int:
    """Elements of a piece so that each owner has several, within the bounds above."""
    numel = sum(key.numel for key in keys)
    return max(LEAST_PIECE_NUMEL, min(PIECE_NUMEL, numel // (4 * owners)))


def _cut_key(key: Key, most_numel: int) -> list[Piece]:
    most_numel -= most_numel % ALIGNMENT
    count = max(1, -(-key.numel // most_numel))
    size = -(-key.numel // count)
    size += -size % ALIGNMENT
    starts = range(0, key.numel, size) if key.numel else range(1)
    return [Piece(key, start, min(start + size, key.numel)) for start in starts]


def batches(pieces: Sequence[Piece], *, most_numel: int = BATCH_NUMEL) -> list[list[Piece]]:
    """The pieces in order, in groups that travel together."""
    groups: list[list[Piece]] = [[]]
    numel = 0
    for piece in pieces:
        if groups[-1] and numel + piece.numel > most_numel:
            groups.append([])
            numel = 0
        groups[-1].append(piece)
        numel += piece.numel
    return groups


def place(pieces: Sequence[Piece], *, owners: int) -> tuple[int, ...]:
    """The owner of each piece.

    The largest piece goes to the owner with the least so far, and so on; the lower number wins
    among equals. No owner has more than the mean and one piece.
    """
    check_whole(owners, least=1, owner="place", field="owners")
    heap = [(0, owner) for owner in range(owners)]
    placed = [0] * len(pieces)
    by_size = sorted(range(len(pieces)), key=lambda i: (-pieces[i].numel, i))
    for i in by_size:
        load, placed[i] = heapq.heappop(heap)
        heapq.heappush(heap, (load + pieces[i].numel, placed[i]))
    return tuple(placed)
