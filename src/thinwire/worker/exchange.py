"""Averaging without a server process: every rank serves its share, or everybody hears all.

Knows nothing of DDP, threads or futures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from thinwire.compressor import Encoded, is_usable
from thinwire.gradient.keys import Key
from thinwire.gradient.pieces import PIECE_NUMEL, Piece, batches, cut
from thinwire.gradient.placement import place
from thinwire.recipe import Recipe
from thinwire.wire.body import Entry
from thinwire.wire.messages import Push, Update
from thinwire.worker.link import Link
from thinwire.worker.sides import (
    Round,
    ServerSide,
    WorkerSide,
    add_into,
    decode_into,
    entries,
    pack,
    read,
    slice_of,
)
from thinwire.worker.state import States, by_parameter, by_piece


class Exchange(Protocol):
    def average(
        self, flat: Mapping[str, Tensor], *, step: int, learning_rate: float | None = None
    ) -> dict[str, Tensor]:
        """The mean over all ranks of these gradients, flat and float32, as the recipe sends it.

        All ranks must call it with the same names in the same order of calls.
        """

    def state_dict(self) -> dict[str, States]:
        """What this rank owes: as a worker by parameter, as a server by piece."""

    def load_state_dict(self, state: Mapping[str, States]) -> None: ...


class Sharded:
    """DoubleSqueeze in two passes: pushes to the owners of the pieces, their answers back.

    Bytes per rank do not grow with the number of ranks.
    """

    def __init__(
        self,
        recipe: Recipe,
        keys: Sequence[Key],
        link: Link,
        *,
        seed: int = 0,
        piece_numel: int = PIECE_NUMEL,
    ) -> None:
        self._link = link
        self._pieces = cut(keys, most_numel=piece_numel)
        self._numbers = {piece: number for number, piece in enumerate(self._pieces)}
        self._owners = dict(zip(self._pieces, place(self._pieces, owners=link.size), strict=True))
        self._worker = WorkerSide(recipe, rank=link.rank, workers=link.size, seed=seed)
        self._server = ServerSide(recipe, workers=link.size, seed=seed)

    def average(
        self, flat: Mapping[str, Tensor], *, step: int, learning_rate: float | None = None
    ) -> dict[str, Tensor]:
        what = f"step {step}, gradients {', '.join(flat)}"
        usable = self._link.all_agree(all(is_usable(x) for x in flat.values()), what=what)
        round_ = Round(step, learning_rate, usable=usable)
        mean = {name: torch.empty_like(x) for name, x in flat.items()}
        for batch in batches([piece for piece in self._pieces if piece.key.name in flat]):
            self._average(batch, flat, mean, round_, what)
        return mean

    def _average(
        self,
        batch: Sequence[Piece],
        flat: Mapping[str, Tensor],
        mean: Mapping[str, Tensor],
        round_: Round,
        what: str,
    ) -> None:
        shares = [[p for p in batch if self._owners[p] == r] for r in range(self._link.size)]
        pushes = self._link.swap([self._push(share, flat, round_) for share in shares], what=what)
        own = shares[self._link.rank]
        received = [read(push, Push, pieces=own) for push in pushes]
        update = self._answer(own, received, round_)
        updates = self._link.swap([update] * self._link.size, what=what)
        for share, data in zip(shares, updates, strict=True):
            decode_into(mean, share, data)

    def state_dict(self) -> dict[str, States]:
        return {
            "push": by_parameter(self._pieces, self._worker.compressor.state_dict()),
            "pull": self._server.compressor.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, States]) -> None:
        self._worker.compressor.load_state_dict(by_piece(self._pieces, state["push"]))
        self._server.compressor.load_state_dict(state["pull"])

    def _push(self, share: Sequence[Piece], flat: Mapping[str, Tensor], round_: Round) -> bytes:
        encoded = [self._worker.push(p, slice_of(flat, p), round_) for p in share]
        message = Push(round_.step, round_.learning_rate or 0.0, self._entries(share, encoded))
        return pack(message, worker=self._link.rank, step=round_.step)

    def _answer(
        self, share: Sequence[Piece], pushes: Sequence[Sequence[Entry]], round_: Round
    ) -> bytes:
        answers = [
            self._server.answer(piece, column, round_)
            for piece, *column in zip(share, *pushes, strict=True)
        ]
        message = Update(round_.step + 1, self._entries(share, answers))
        return pack(message, worker=self._link.rank, step=round_.step)

    def _entries(self, share: Sequence[Piece], encoded: Sequence[Encoded]) -> tuple[Entry, ...]:
        return entries([self._numbers[piece] for piece in share], encoded)


class AllGather:
    """One pass, as in the Deep Gradient Compression paper: every rank hears every push.

    The answer is not compressed again, so the recipe's ``pull`` is not used. Bytes received grow
    with the number of ranks: right for few.
    """

    def __init__(
        self,
        recipe: Recipe,
        keys: Sequence[Key],
        link: Link,
        *,
        seed: int = 0,
        piece_numel: int = PIECE_NUMEL,
    ) -> None:
        self._link = link
        self._pieces = cut(keys, most_numel=piece_numel)
        self._worker = WorkerSide(recipe, rank=link.rank, workers=link.size, seed=seed)

    def average(
        self, flat: Mapping[str, Tensor], *, step: int, learning_rate: float | None = None
    ) -> dict[str, Tensor]:
        what = f"step {step}, gradients {', '.join(flat)}"
        usable = self._link.all_agree(all(is_usable(x) for x in flat.values()), what=what)
        round_ = Round(step, learning_rate, usable=usable)
        mean = {name: torch.zeros_like(x) for name, x in flat.items()}
        for batch in batches([piece for piece in self._pieces if piece.key.name in flat]):
            push = self._push(batch, flat, round_)
            for data in self._link.swap([push] * self._link.size, what=what):
                add_into(mean, batch, data, weight=1 / self._link.size)
        return mean

    def state_dict(self) -> dict[str, States]:
        return {"push": by_parameter(self._pieces, self._worker.compressor.state_dict())}

    def load_state_dict(self, state: Mapping[str, States]) -> None:
        self._worker.compressor.load_state_dict(by_piece(self._pieces, state["push"]))

    def _push(self, batch: Sequence[Piece], flat: Mapping[str, Tensor], round_: Round) -> bytes:
        encoded = [self._worker.push(piece, slice_of(flat, piece), round_) for piece in batch]
        numbered = entries(range(len(batch)), encoded)
        message = Push(round_.step, round_.learning_rate or 0.0, numbered)
        return pack(message, worker=self._link.rank, step=round_.step)
