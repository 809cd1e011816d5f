"""Pieces on their way between two ranks: a frame, and large dense payloads beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from thinwire.codec.dense import Float32, bytes_of
from thinwire.encoded import Encoded
from thinwire.errors import RemoteProtocolError
from thinwire.gradient.pieces import Piece
from thinwire.wire.messages import Push, Update
from thinwire.worker.link import Link, Pending
from thinwire.worker.sides import (
    BESIDE,
    Kind,
    Round,
    bytes_in,
    entries,
    is_large,
    read,
    slice_of,
    without_large,
)


@dataclass(slots=True)
class Parcel:
    """One rank's message for some pieces, while it comes."""

    pieces: Sequence[Piece]
    room: Mapping[str, Tensor] | None
    frame: Pending
    encoded: list[Encoded] = field(default_factory=list)
    beside: dict[int, Pending] = field(default_factory=dict)


class Side(Protocol):
    """What both ends of a link know of the messages on it before they are made."""

    def most_nbytes(self, pieces: Sequence[Piece], step: int) -> int:
        """The largest frame for these pieces."""

    def foresees(self, piece: Piece, step: int) -> bool:
        """Whether this piece certainly travels beside the frame."""


class AlwaysDense:
    """A side that compresses nothing."""

    def most_nbytes(self, pieces: Sequence[Piece], step: int) -> int:
        return frame_nbytes(4 * sum(piece.numel for piece in pieces), len(pieces))

    def foresees(self, piece: Piece, step: int) -> bool:
        return is_large(piece)


class Post:
    """Sends and receives the pieces of units over a link, which ``side`` makes.

    What is foreseen is received from the beginning: gloo does not send what nobody waits for.
    """

    def __init__(self, link: Link, pieces: Sequence[Piece], side: Side) -> None:
        self.link, self._side = link, side
        self._numbers = {piece: number for number, piece in enumerate(pieces)}

    def send(
        self,
        ranks: Sequence[int],
        kind: type[Push] | type[Update],
        pieces: Sequence[Piece],
        encoded: Sequence[Encoded],
        round_: Round,
    ) -> list[Pending]:
        """Begin to send all of it, the frame first."""
        sent = self.send_frame(ranks, kind, pieces, encoded, round_)
        for piece, one in zip(pieces, encoded, strict=True):
            sent += self.send_foreseen(ranks, piece, one, round_)
        return sent

    def send_frame(
        self,
        ranks: Sequence[int],
        kind: type[Push] | type[Update],
        pieces: Sequence[Piece],
        encoded: Sequence[Encoded],
        round_: Round,
    ) -> list[Pending]:
        """Begin to send the frame, and what only that announces."""
        inside, large = without_large(encoded)
        numbered = entries([self._numbers[piece] for piece in pieces], inside)
        message: Push | Update
        if kind is Push:
            message = Push(round_.step, round_.learning_rate or 0.0, numbered)
        else:
            message = Update(round_.step + 1, numbered)
        most = frame_nbytes(sum(one.nbytes for one in inside), len(inside))
        sent = self.link.send(ranks, message, step=round_.step, most_nbytes=most)
        for i in large:
            if not self._side.foresees(pieces[i], round_.step):
                sent += self.link.send_beside(ranks, bytes_in(encoded[i]), foreseen=False)
        return sent

    def send_foreseen(
        self, ranks: Sequence[int], piece: Piece, encoded: Encoded, round_: Round
    ) -> list[Pending]:
        """Begin to send a piece that its receivers foresee; nothing if they do not.

        It need not wait for its frame, nor for other pieces.
        """
        if not self._side.foresees(piece, round_.step):
            return []
        return self.link.send_beside(ranks, bytes_in(encoded), foreseen=True)

    def expect(
        self,
        rank: int,
        pieces: Sequence[Piece],
        step: int,
        room: Mapping[str, Tensor] | None = None,
    ) -> Parcel:
        """Begin to receive a parcel. Large dense pieces come into ``room`` if it is given."""
        foreseen = [self._side.foresees(piece, step) for piece in pieces]
        inside = [piece for piece, beside in zip(pieces, foreseen, strict=True) if not beside]
        most = self._side.most_nbytes(inside, step) + frame_nbytes(0, len(pieces))
        parcel = Parcel(pieces, room, self.link.receive(rank, most_nbytes=most))
        for i, beside in enumerate(foreseen):
            if beside:
                self._receive_beside(parcel, i, foreseen=True)
        return parcel

    def _receive_beside(self, parcel: Parcel, i: int, *, foreseen: bool) -> None:
        piece, rank = parcel.pieces[i], parcel.frame.rank
        room = None if parcel.room is None else slice_of(parcel.room, piece).view(torch.uint8)
        nbytes = 4 * piece.numel
        parcel.beside[i] = self.link.receive_beside(rank, nbytes, room, foreseen=foreseen)

    def open(self, parcel: Parcel, kind: type[Kind], *, step: int, what: str) -> None:
        """Wait for the frame, and begin to receive what it announces."""
        frame = self.link.frame(parcel.frame, step=step, what=what)
        numbers = [self._numbers[piece] for piece in parcel.pieces]
        parcel.encoded = read(frame, kind, numbers=numbers, pieces=parcel.pieces)
        for i, one in enumerate(parcel.encoded):
            if one.wire_id == BESIDE and i not in parcel.beside:
                self._receive_beside(parcel, i, foreseen=False)
            elif one.wire_id != BESIDE and i in parcel.beside:
                raise RemoteProtocolError(
                    f"{what}: {parcel.pieces[i].name} is compressed, expected float32: do all "
                    "ranks use the same recipe?"
                )

    def contents(self, parcel: Parcel, *, what: str) -> list[Encoded]:
        """Wait for all of it."""
        return list(self.each(parcel, what=what))

    def each(self, parcel: Parcel, *, what: str) -> Iterator[Encoded]:
        """After ``open``: wait for one piece after the other.

        Payloads are views of buffers, until ``give_back``.
        """
        for i, (piece, encoded) in enumerate(zip(parcel.pieces, parcel.encoded, strict=True)):
            if pending := parcel.beside.get(i):
                nbytes = 4 * piece.numel
                self.link.arrived(pending, nbytes, what=what)
                payload = bytes_of(pending.buffer[:nbytes])
                yield Encoded(Float32.wire_id, piece.numel, payload)
            else:
                yield encoded

    def give_back(self, parcels: Iterable[Parcel]) -> None:
        for parcel in parcels:
            self.link.give_back([parcel.frame, *parcel.beside.values()])


def frame_nbytes(payload_nbytes: int, pieces: int) -> int:
    """Room for a frame: 64 bytes are more than its header, and than each row of its table."""
    return 64 * (2 + pieces) + payload_nbytes
