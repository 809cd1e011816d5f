"""The two sides of an exchange. Every exchange is made of these.

Pure but for the residuals: no network, no threads, no devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from thinwire import _native
from thinwire.codec import registry
from thinwire.codec.arena import HEAP, Arena
from thinwire.codec.dense import Float32
from thinwire.compressor import Compressor
from thinwire.encoded import Encoded
from thinwire.errors import RemoteProtocolError
from thinwire.gradient.pieces import Piece
from thinwire.recipe import Recipe
from thinwire.wire.body import Entry
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Push, Update, decode

Kind = TypeVar("Kind", Push, Update)

BESIDE = 0
"""In the place of a codec's wire id: the payload is float32, and comes beside the frame."""

LARGE_NBYTES = 1 << 16
"""From here on a message more costs less than two copies."""


@dataclass(frozen=True, slots=True)
class Round:
    """One step: what all of its messages have in common."""

    step: int
    learning_rate: float | None = None
    gradient_norm: float | None = None


class WorkerSide:
    """Compresses this worker's gradients. Its newest step can be undone."""

    def __init__(self, recipe: Recipe, *, rank: int, workers: int, seed: int) -> None:
        self.compressor = Compressor(
            recipe.push, recipe.push_feedback, seed=seed, rank=rank, workers=workers, undo=True
        )

    def push(
        self,
        pieces: Sequence[Piece],
        flat: Mapping[str, Tensor],
        round_: Round,
        arena: Arena = HEAP,
        *,
        clear: bool = False,
    ) -> list[Encoded]:
        """Payloads may be views of ``flat``; the others are written into ``arena``.

        With ``clear`` gradients are zeros afterwards where payloads are of a sparse codec.
        """
        return [
            self.compressor.compress_piece(
                piece,
                slice_of(flat, piece),
                step=round_.step,
                gradient_norm=round_.gradient_norm,
                learning_rate=round_.learning_rate,
                view=True,
                clear=clear,
                arena=arena,
            )
            for piece in pieces
        ]

    def most_nbytes(self, pieces: Sequence[Piece], step: int) -> int:
        return _most_nbytes(self.compressor, pieces, step)

    def foresees(self, piece: Piece, step: int) -> bool:
        return is_large(piece) and self.compressor.is_dense(piece, step=step)


class ServerSide:
    """Compresses the mean of what all workers pushed.

    It draws other random numbers than any worker, and the same whoever plays the server.
    """

    def __init__(self, recipe: Recipe, *, workers: int, seed: int) -> None:
        self._weight = 1 / workers
        self.compressor = Compressor(
            recipe.pull, recipe.pull_feedback, seed=seed, rank=workers, workers=workers, undo=True
        )

    def answer(
        self, pieces: Sequence[Piece], pushes: Sequence[Sequence[Encoded]], round_: Round
    ) -> list[Encoded]:
        """``pushes`` are those of each worker, in the order of their ranks."""
        columns = zip(pieces, *pushes, strict=True)
        return [self.answer_piece(piece, column, round_) for piece, *column in columns]

    def answer_piece(
        self,
        piece: Piece,
        pushes: Sequence[Encoded],
        round_: Round,
        room: Mapping[str, Tensor] | None = None,
        arena: Arena = HEAP,
    ) -> Encoded:
        """``room`` is memory by parameter name, not needed any more, that the payload may be a
        view of. Else it is written into ``arena``.
        """
        return self.compressor.compress_sum(
            piece,
            pushes,
            weight=self._weight,
            step=round_.step,
            learning_rate=round_.learning_rate,
            room=None if room is None else slice_of(room, piece),
            arena=arena,
        )

    def most_nbytes(self, pieces: Sequence[Piece], step: int) -> int:
        return _most_nbytes(self.compressor, pieces, step)

    def foresees(self, piece: Piece, step: int) -> bool:
        return is_large(piece) and self.compressor.is_dense(piece, step=step)


def is_large(piece: Piece) -> bool:
    """Whether its gradient goes beside a frame if it is not compressed."""
    return 4 * piece.numel >= LARGE_NBYTES


def _most_nbytes(compressor: Compressor, pieces: Sequence[Piece], step: int) -> int:
    """The largest frame for these pieces: 64 bytes are more than its header, and than each row."""
    payloads = sum(compressor.max_nbytes(piece, step=step) for piece in pieces)
    return 64 * (2 + len(pieces)) + payloads


def slice_of(flat: Mapping[str, Tensor], piece: Piece) -> Tensor:
    """The piece of a flat tensor that is kept by parameter name."""
    whole = flat[piece.key.name]
    return whole if piece.numel == piece.key.numel else whole[piece.start : piece.stop]


def norm_of(gradients: Iterable[Tensor]) -> float:
    """Of all these gradients, which are flat, together."""
    return math.sqrt(math.fsum(map(_native.sum_squares, gradients)))


def entries(numbers: Sequence[int], encoded: Sequence[Encoded]) -> tuple[Entry, ...]:
    """Encoded pieces under their numbers, which ascend."""
    return tuple(
        Entry(number, one.wire_id, one.numel, memoryview(one.payload))
        for number, one in zip(numbers, encoded, strict=True)
    )


def without_large(encoded: Sequence[Encoded]) -> tuple[list[Encoded], list[int]]:
    """What goes into a frame, and the places of what goes beside it: large dense payloads.

    They would be copied into the frame and out of it again, and plain DDP does not do that.
    """
    inside, beside = list(encoded), []
    for i, one in enumerate(encoded):
        if one.wire_id == Float32.wire_id and one.nbytes >= LARGE_NBYTES:
            inside[i] = Encoded(BESIDE, one.numel, b"")
            beside.append(i)
    return inside, beside


def bytes_in(encoded: Encoded) -> Tensor:
    """Its payload, as gloo wants it: a view, not a copy."""
    return torch.frombuffer(encoded.payload, dtype=torch.uint8)


def read(
    frame: Frame, kind: type[Kind], *, numbers: Sequence[int], pieces: Sequence[Piece]
) -> list[Encoded]:
    """What a message brings, which must be for just these pieces. Payloads are views of it."""
    message = decode(frame)
    if not isinstance(message, kind):
        raise RemoteProtocolError(f"exchange: {type(message).__name__}, expected {kind.__name__}")
    found = [(entry.piece, entry.numel) for entry in message.entries]
    expected = [(number, piece.numel) for number, piece in zip(numbers, pieces, strict=True)]
    if found != expected:
        raise RemoteProtocolError(
            f"exchange: pieces (number, elements) {found}, expected {expected}: do all ranks train "
            "the same network?"
        )
    return [Encoded(entry.codec, entry.numel, entry.payload) for entry in message.entries]


def decode_into(
    mean: Mapping[str, Tensor], pieces: Sequence[Piece], encoded: Sequence[Encoded]
) -> None:
    """Write pieces where they belong."""
    for piece, one in zip(pieces, encoded, strict=True):
        registry.decode(one.wire_id, one.payload, slice_of(mean, piece))


def overflowed(
    mean: Mapping[str, Tensor], pieces: Sequence[Piece], *encoded: Sequence[Encoded]
) -> bool:
    """Whether a piece is not finite: then no optimizer may use this step, nor any state keep it.

    ``encoded`` is what the mean was made of. Encoders send an overflow as float32, and all workers
    see the same bytes, so all of them agree.
    """
    return any(
        any(one.wire_id == Float32.wire_id for one in column)
        and not _native.all_finite(slice_of(mean, piece))
        for piece, *column in zip(pieces, *encoded, strict=True)
    )
