"""Refused pushes, until they are a part of what is pushed next: nothing is lost by a refusal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from thinwire.compressor import Compressor
from thinwire.encoded import Encoded
from thinwire.gradient.pieces import Piece
from thinwire.wire.body import Entry
from thinwire.worker.sides import slice_of


class Returned:
    """Where a recipe keeps a residual, they go there. Where it does not, they are kept here."""

    def __init__(self, compressor: Compressor, pieces: Sequence[Piece], *, residual: bool) -> None:
        self._compressor, self._pieces, self._residual = compressor, pieces, residual
        self.kept: dict[str, Tensor] = {}
        """By piece."""

    def take(self, entries: Collection[Entry]) -> None:
        for entry in entries:
            piece, sent = self._pieces[entry.piece], _encoded(entry)
            if self._residual:
                self._compressor.take_back(piece, sent)
            elif piece.name in self.kept:
                self.kept[piece.name] += sent.decode()
            else:
                self.kept[piece.name] = sent.decode()

    def add_to(self, flat: dict[str, Tensor], pieces: Collection[Piece]) -> None:
        """Add what is kept for these pieces to their gradients, of which copies are made."""
        copied: set[str] = set()
        for piece in pieces:
            kept = self.kept.pop(piece.name, None)
            if kept is not None:
                name = piece.key.name
                if name not in copied:
                    flat[name] = flat[name].clone()
                    copied.add(name)
                slice_of(flat, piece).add_(kept)

    def load(self, kept: Mapping[str, Tensor]) -> None:
        self.kept = {name: tensor.detach().clone() for name, tensor in kept.items()}


def _encoded(entry: Entry) -> Encoded:
    return Encoded(entry.codec, entry.numel, entry.payload)
