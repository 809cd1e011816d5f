"""Pieces on their way between two ranks: a frame, and large dense payloads beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from thinwire.codec.dense import Float32, bytes_of
from thinwire.compressor import Encoded
from thinwire.gradient.pieces import Piece
from thinwire.wire.messages import Push, Update
from thinwire.worker.link import Link, Pending
from thinwire.worker.sides import BESIDE, Kind, Round, entries, read, slice_of, without_large


@dataclass(slots=True)
class Parcel:
    """One rank's message for some pieces, while it comes."""

    pieces: Sequence[Piece]
    frame: Pending
    encoded: list[Encoded] = field(default_factory=list)
    beside: dict[int, Pending] = field(default_factory=dict)


class Post:
    """Sends and receives the pieces of units over a link."""

    def __init__(self, link: Link, pieces: Sequence[Piece]) -> None:
        self.link = link
        self._numbers = {piece: number for number, piece in enumerate(pieces)}

    def send(
        self,
        ranks: Iterable[int],
        kind: type[Push] | type[Update],
        pieces: Sequence[Piece],
        encoded: Sequence[Encoded],
        round_: Round,
    ) -> list[Pending]:
        inside, beside = without_large(encoded)
        numbered = entries([self._numbers[piece] for piece in pieces], inside)
        message: Push | Update
        if kind is Push:
            message = Push(round_.step, round_.learning_rate or 0.0, numbered)
        else:
            message = Update(round_.step + 1, numbered)
        most = frame_nbytes(sum(one.nbytes for one in inside), len(inside))
        return self.link.send(ranks, message, step=round_.step, most_nbytes=most, beside=beside)

    def expect(self, rank: int, pieces: Sequence[Piece], most_nbytes: int) -> Parcel:
        return Parcel(pieces, self.link.receive(rank, most_nbytes=most_nbytes))

    def open(
        self,
        parcel: Parcel,
        kind: type[Kind],
        *,
        step: int,
        what: str,
        room: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Wait for the frame, and begin to receive the rest: into ``room`` if it is given."""
        frame = self.link.frame(parcel.frame, step=step, what=what)
        numbers = [self._numbers[piece] for piece in parcel.pieces]
        parcel.encoded = read(frame, kind, numbers=numbers, pieces=parcel.pieces)
        for i, (piece, one) in enumerate(zip(parcel.pieces, parcel.encoded, strict=True)):
            if one.wire_id == BESIDE:
                place = None if room is None else slice_of(room, piece).view(torch.uint8)
                parcel.beside[i] = self.link.receive_beside(
                    parcel.frame.rank, 4 * piece.numel, place
                )

    def contents(self, parcel: Parcel, *, what: str) -> list[Encoded]:
        """Wait for all of it. Payloads are views of buffers, until ``give_back``."""
        for i, pending in parcel.beside.items():
            self.link.arrived(pending, what=what)
            numel = parcel.pieces[i].numel
            payload = bytes_of(pending.buffer[: 4 * numel])
            parcel.encoded[i] = Encoded(Float32.wire_id, numel, payload)
        return parcel.encoded

    def give_back(self, parcels: Iterable[Parcel]) -> None:
        for parcel in parcels:
            self.link.give_back([parcel.frame, *parcel.beside.values()])


def frame_nbytes(payload_nbytes: int, pieces: int) -> int:
    """Room for a frame: 64 bytes are more than its header, and than each row of its table."""
    return 64 * (2 + pieces) + payload_nbytes
