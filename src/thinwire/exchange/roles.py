"""``WorkerRole`` and ``ServerRole``: what each end of an exchange computes.

Pure but for the residuals: no network, no threads, no devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from thinwire import _native
from thinwire.codec import registry
from thinwire.codec.arena import HEAP, Arena
from thinwire.codec.dense import Float32
from thinwire.compressor.compressor import Compressor
from thinwire.errors import RemoteProtocolError
from thinwire.feedback.base import is_usable
from thinwire.gradient.pieces import Piece
from thinwire.gradient.steps import Carried, StepInfo
from thinwire.optim.shared_momentum import MomentumSource
from thinwire.recipe import Recipe
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Push, Update, decode

Kind = TypeVar("Kind", Push, Update)

BESIDE = 0
"""In the place of a codec's wire id: the payload is float32, and comes beside the frame."""

LARGE_NBYTES = 1 << 16
"""From here on a message more costs less than two copies."""


class WorkerRole:
    """Compresses this worker's gradients. With ``undo`` its newest step can be undone."""

    def __init__(
        self, recipe: Recipe, *, rank: int, workers: int, seed: int, undo: bool = False
    ) -> None:
        self.compressor = Compressor(
            recipe.push, recipe.push_feedback, seed=seed, rank=rank, workers=workers, undo=undo
        )
        self.momentum: MomentumSource | None = None
        """Where the optimizer's momentum is, if the recipe shares it."""

    def push(
        self,
        pieces: Sequence[Piece],
        flat: Mapping[str, Tensor],
        info: StepInfo,
        arena: Arena = HEAP,
        *,
        clear: bool = False,
    ) -> list[EncodedBytes]:
        """Payloads may be views of ``flat``; the others are written into ``arena``.

        With ``clear`` gradients are zeros afterwards where payloads are of a sparse codec.
        """
        return [
            self.compressor.compress_piece(
                piece,
                slice_of(flat, piece),
                step=info.step,
                gradient_norm=info.gradient_norm,
                learning_rate=info.learning_rate,
                carried=self._carried(piece, info),
                view=True,
                clear=clear,
                arena=arena,
            )
            for piece in pieces
        ]

    def _carried(self, piece: Piece, info: StepInfo) -> Carried | None:
        return None if self.momentum is None else self.momentum.carried(piece, step=info.step)

    def most_nbytes(self, pieces: Sequence[Piece], step: int) -> int:
        return _most_nbytes(self.compressor, pieces, step)

    def foresees(self, piece: Piece, step: int) -> bool:
        return is_large(piece) and self.compressor.is_dense(piece, step=step)


class ServerRole:
    """Compresses the mean of what all workers pushed.

    It draws other random numbers than any worker, and the same on any rank or server.
    """

    def __init__(self, recipe: Recipe, *, workers: int, seed: int, undo: bool = False) -> None:
        self._weight = 1 / workers
        self.compressor = Compressor(
            recipe.pull, recipe.pull_feedback, seed=seed, rank=workers, workers=workers, undo=undo
        )

    def answer(
        self, pieces: Sequence[Piece], pushes: Sequence[Sequence[EncodedBytes]], info: StepInfo
    ) -> list[EncodedBytes]:
        """``pushes`` are those of each worker, in the order of their ranks."""
        columns = zip(pieces, *pushes, strict=True)
        return [self.answer_piece(piece, column, info) for piece, *column in columns]

    def answer_piece(
        self,
        piece: Piece,
        pushes: Sequence[EncodedBytes],
        info: StepInfo,
        room: Mapping[str, Tensor] | None = None,
        arena: Arena = HEAP,
    ) -> EncodedBytes:
        """``room`` is memory by parameter name, not needed any more, that the payload may be a
        view of. Else it is written into ``arena``.
        """
        return self.compressor.compress_sum(
            piece,
            pushes,
            weight=self._weight,
            step=info.step,
            learning_rate=info.learning_rate,
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
    """The L2 norm of all these flat gradients together."""
    return math.sqrt(math.fsum(map(_native.sum_squares, gradients)))


def entries(numbers: Sequence[int], encoded: Sequence[EncodedBytes]) -> tuple[Entry, ...]:
    """Encoded pieces with their numbers, which ascend."""
    return tuple(Entry(number, piece) for number, piece in zip(numbers, encoded, strict=True))


def without_large(encoded: Sequence[EncodedBytes]) -> tuple[list[EncodedBytes], list[int]]:
    """What goes into a frame, and the places of what goes beside it: large dense payloads.

    They would be copied into the frame and out of it again, and plain DDP does not do that.
    """
    inside, beside = list(encoded), []
    for i, piece in enumerate(encoded):
        if piece.wire_id == Float32.wire_id and piece.nbytes >= LARGE_NBYTES:
            inside[i] = EncodedBytes(BESIDE, piece.numel, b"")
            beside.append(i)
    return inside, beside


def bytes_in(encoded: EncodedBytes) -> Tensor:
    """A view of its payload, as the uint8 tensor that gloo sends."""
    return torch.frombuffer(encoded.payload, dtype=torch.uint8)


def read(
    frame: Frame, kind: type[Kind], *, numbers: Sequence[int], pieces: Sequence[Piece]
) -> list[EncodedBytes]:
    """Decode a message, which must be for just these pieces. Payloads are views of it."""
    message = decode(frame)
    if not isinstance(message, kind):
        raise RemoteProtocolError(f"exchange: {type(message).__name__}, expected {kind.__name__}")
    received = [(entry.piece, entry.encoded.numel) for entry in message.entries]
    expected = [(number, piece.numel) for number, piece in zip(numbers, pieces, strict=True)]
    if received != expected:
        raise RemoteProtocolError(
            f"exchange: pieces (number, elements) {received}, expected {expected}: do all ranks "
            "train the same network?"
        )
    return [entry.encoded for entry in message.entries]


def finite_push(
    role: WorkerRole, pieces: Sequence[Piece], flat: Mapping[str, Tensor], info: StepInfo
) -> tuple[list[EncodedBytes], int]:
    """What to send for these gradients, and how many pieces were left out of it.

    A piece with an inf or a nan would spoil the weights of all, so only its residual is sent. Only
    float32 can carry such numbers.
    """
    sent, left_out = role.push(pieces, flat, info), 0
    for i, (piece, encoded) in enumerate(zip(pieces, sent, strict=True)):
        if encoded.wire_id != Float32.wire_id:
            continue
        if not is_usable(_native.sum_squares(slice_of(flat, piece))):
            nothing = {piece.key.name: torch.zeros(piece.key.numel)}
            [sent[i]] = role.push([piece], nothing, info)
            left_out += 1
    return sent, left_out


def decode_into(
    mean: Mapping[str, Tensor], pieces: Sequence[Piece], encoded: Sequence[EncodedBytes]
) -> None:
    """Decode pieces to where they belong."""
    for piece, update in zip(pieces, encoded, strict=True):
        registry.decode(update.wire_id, update.payload, slice_of(mean, piece))


def overflowed(
    mean: Mapping[str, Tensor], pieces: Sequence[Piece], *encoded: Sequence[EncodedBytes]
) -> bool:
    """Whether a piece is not finite: then no optimizer may use this step, nor any state keep it.

    ``encoded`` is what the mean was made of. Encoders send an overflow as float32, and all workers
    see the same bytes, so all of them agree.
    """
    return any(
        any(source.wire_id == Float32.wire_id for source in column)
        and not _native.all_finite(slice_of(mean, piece))
        for piece, *column in zip(pieces, *encoded, strict=True)
    )
