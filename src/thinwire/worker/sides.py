"""The two sides of an exchange, and the bytes between them. Every exchange is made of these.

Pure but for the residuals: no network, no threads, no devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from thinwire.codec import registry
from thinwire.compressor import Compressor, Encoded, untouched
from thinwire.errors import RemoteProtocolError
from thinwire.gradient.pieces import Piece
from thinwire.recipe import Recipe
from thinwire.wire import frame
from thinwire.wire.body import Entry
from thinwire.wire.messages import Message, Push, Update, decode, encode

Kind = TypeVar("Kind", Push, Update)


@dataclass(frozen=True, slots=True)
class Round:
    """One step: what all of its messages have in common.

    ``usable`` is agreed by all workers: if a gradient of one is not finite, all travel as they are
    and no state changes anywhere.
    """

    step: int
    learning_rate: float | None = None
    gradient_norm: float | None = None
    usable: bool = True


class WorkerSide:
    """Compresses this worker's gradients."""

    def __init__(self, recipe: Recipe, *, rank: int, workers: int, seed: int) -> None:
        self.compressor = Compressor(
            recipe.push, recipe.push_feedback, seed=seed, rank=rank, workers=workers
        )

    def push(self, piece: Piece, flat: Tensor, round_: Round) -> Encoded:
        if not round_.usable:
            return untouched(flat)
        return self.compressor.compress_piece(
            piece,
            flat,
            step=round_.step,
            gradient_norm=round_.gradient_norm,
            learning_rate=round_.learning_rate,
        )


class ServerSide:
    """Compresses the mean of what all workers pushed.

    It draws other random numbers than any worker, and the same whoever plays the server.
    """

    def __init__(self, recipe: Recipe, *, workers: int, seed: int) -> None:
        self._weight = 1 / workers
        self.compressor = Compressor(
            recipe.pull, recipe.pull_feedback, seed=seed, rank=workers, workers=workers
        )

    def answer(self, piece: Piece, pushes: Sequence[Entry], round_: Round) -> Encoded:
        encoded = [Encoded(entry.codec, entry.numel, entry.payload) for entry in pushes]
        if round_.usable:
            return self.compressor.compress_sum(
                piece,
                encoded,
                weight=self._weight,
                step=round_.step,
                learning_rate=round_.learning_rate,
            )
        mean = torch.zeros(piece.numel)
        for push in encoded:
            registry.add(push.wire_id, push.payload, mean, weight=self._weight)
        return untouched(mean)


def slice_of(flat: Mapping[str, Tensor], piece: Piece) -> Tensor:
    """The piece of a flat tensor that is kept by parameter name."""
    return flat[piece.key.name][piece.start : piece.stop]


def entries(numbers: Sequence[int], encoded: Sequence[Encoded]) -> tuple[Entry, ...]:
    """Encoded pieces under their numbers, which ascend."""
    return tuple(
        Entry(number, one.wire_id, one.numel, memoryview(one.payload))
        for number, one in zip(numbers, encoded, strict=True)
    )


def pack(message: Message, *, worker: int, step: int) -> bytes:
    return b"".join(frame.pack(encode(message, run=1, epoch=1, worker=worker, step=step)))


def read(data: bytes, kind: type[Kind], *, pieces: Sequence[Piece]) -> tuple[Entry, ...]:
    """The entries of a message that must be for just these pieces."""
    message = decode(frame.unpack(memoryview(data)))
    if not isinstance(message, kind):
        raise RemoteProtocolError(f"exchange: {type(message).__name__}, expected {kind.__name__}")
    found = [entry.numel for entry in message.entries]
    expected = [piece.numel for piece in pieces]
    if found != expected:
        raise RemoteProtocolError(
            f"exchange: entries of {found} elements, expected {expected}: do all ranks train "
            "the same network?"
        )
    return message.entries


def decode_into(mean: Mapping[str, Tensor], pieces: Sequence[Piece], data: bytes) -> None:
    """Write the pieces of an update where they belong."""
    for piece, entry in zip(pieces, read(data, Update, pieces=pieces), strict=True):
        registry.decode(entry.codec, entry.payload, slice_of(mean, piece))


def add_into(
    mean: Mapping[str, Tensor], pieces: Sequence[Piece], data: bytes, *, weight: float
) -> None:
    """Add the pieces of a push, times ``weight``, where they belong."""
    for piece, entry in zip(pieces, read(data, Push, pieces=pieces), strict=True):
        registry.add(entry.codec, entry.payload, slice_of(mean, piece), weight=weight)
