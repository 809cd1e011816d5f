"""``ParcelChannel``: the pieces of a unit between two ranks, in a frame and beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from thinwire.codec.dense import Float32, bytes_of
from thinwire.errors import RemoteProtocolError
from thinwire.exchange.link import Link, Pending, Wait
from thinwire.exchange.optimizer_steps import check_alike
from thinwire.exchange.roles import (
    BESIDE,
    Kind,
    bytes_in,
    entries,
    is_large,
    read,
    slice_of,
    without_large,
)
from thinwire.gradient.pieces import Piece
from thinwire.gradient.steps import StepInfo
from thinwire.wire.body import EncodedBytes
from thinwire.wire.messages import Push, Update


@dataclass(slots=True)
class Parcel:
    """One rank's message for some pieces, while it arrives: the frame, and payloads beside it."""

    pieces: Sequence[Piece]
    room: Mapping[str, Tensor] | None
    frame: Pending
    encoded: list[EncodedBytes] = field(default_factory=list)
    beside: dict[int, Pending] = field(default_factory=dict)


class Role(Protocol):
    """What both ends of a link know of its messages before they are encoded."""

    def most_nbytes(self, pieces: Sequence[Piece], step: int) -> int:
        """The largest frame for these pieces."""

    def foresees(self, piece: Piece, step: int) -> bool:
        """Whether this piece certainly travels beside the frame."""


class AlwaysDense:
    """The role of ranks that send gradients as they are."""

    def most_nbytes(self, pieces: Sequence[Piece], step: int) -> int:
        return frame_nbytes(4 * sum(piece.numel for piece in pieces), len(pieces))

    def foresees(self, piece: Piece, step: int) -> bool:
        return is_large(piece)


class ParcelChannel:
    """Sends and receives the pieces of units over a link, which ``role`` encodes.

    What is foreseen is received from the beginning: gloo sends only what its receiver expects.
    """

    def __init__(self, link: Link, pieces: Sequence[Piece], role: Role) -> None:
        self.link, self._role = link, role
        self._numbers = {piece: number for number, piece in enumerate(pieces)}

    def send(
        self,
        ranks: Sequence[int],
        kind: type[Push] | type[Update],
        pieces: Sequence[Piece],
        encoded: Sequence[EncodedBytes],
        info: StepInfo,
    ) -> list[Pending]:
        """Begin to send all of it, the frame first."""
        sent = self.send_frame(ranks, kind, pieces, encoded, info)
        for piece, payload in zip(pieces, encoded, strict=True):
            sent += self.send_foreseen(ranks, piece, payload, info)
        return sent

    def send_frame(
        self,
        ranks: Sequence[int],
        kind: type[Push] | type[Update],
        pieces: Sequence[Piece],
        encoded: Sequence[EncodedBytes],
        info: StepInfo,
    ) -> list[Pending]:
        """Begin to send the frame, and what only that announces."""
        inside, large = without_large(encoded)
        numbered = entries([self._numbers[piece] for piece in pieces], inside)
        message: Push | Update
        if kind is Push:
            message = Push(info.step, info.learning_rate or 0.0, numbered)
        else:
            message = Update(info.step + 1, numbered)
        most = frame_nbytes(sum(payload.nbytes for payload in inside), len(inside))
        step, epoch = info.step, int(info.updated)
        sent = self.link.send(ranks, message, step=step, most_nbytes=most, epoch=epoch)
        for i in large:
            if not self._role.foresees(pieces[i], info.step):
                sent += self.link.send_beside(ranks, bytes_in(encoded[i]), foreseen=False)
        return sent

    def send_foreseen(
        self, ranks: Sequence[int], piece: Piece, encoded: EncodedBytes, info: StepInfo
    ) -> list[Pending]:
        """Begin to send a piece that its receivers foresee; nothing if they do not.

        It need not wait for its frame, nor for other pieces.
        """
        if not self._role.foresees(piece, info.step):
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
        foreseen = [self._role.foresees(piece, step) for piece in pieces]
        inside = [piece for piece, beside in zip(pieces, foreseen, strict=True) if not beside]
        most = self._role.most_nbytes(inside, step) + frame_nbytes(0, len(pieces))
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

    def open(self, parcel: Parcel, kind: type[Kind], info: StepInfo, wait: Wait) -> None:
        """Wait for the frame, and begin to receive what it announces."""
        frame = self.link.frame(parcel.frame, wait, step=info.step)
        here, there = (self.link.ranks[rank] for rank in (self.link.rank, parcel.frame.rank))
        check_alike({here: info.updated, there: frame.epoch}, step=info.step)
        numbers = [self._numbers[piece] for piece in parcel.pieces]
        parcel.encoded = read(frame, kind, numbers=numbers, pieces=parcel.pieces)
        for i, payload in enumerate(parcel.encoded):
            if payload.wire_id == BESIDE and i not in parcel.beside:
                self._receive_beside(parcel, i, foreseen=False)
            elif payload.wire_id != BESIDE and i in parcel.beside:
                raise RemoteProtocolError(
                    f"{wait.what}: {parcel.pieces[i].name} is compressed, expected float32: do all "
                    "ranks use the same recipe?"
                )

    def contents(self, parcel: Parcel, wait: Wait) -> list[EncodedBytes]:
        """Wait for all of it."""
        return list(self.each(parcel, wait))

    def each(self, parcel: Parcel, wait: Wait) -> Iterator[EncodedBytes]:
        """After ``open``, wait for one piece after the other.

        Payloads are views of buffers, until ``give_back``.
        """
        for i, (piece, encoded) in enumerate(zip(parcel.pieces, parcel.encoded, strict=True)):
            if pending := parcel.beside.get(i):
                nbytes = 4 * piece.numel
                self.link.arrived(pending, nbytes, wait)
                payload = bytes_of(pending.buffer[:nbytes])
                yield EncodedBytes(Float32.wire_id, piece.numel, payload)
            else:
                yield encoded

    def give_back(self, parcels: Iterable[Parcel]) -> None:
        for parcel in parcels:
            self.link.give_back([parcel.frame, *parcel.beside.values()])


def frame_nbytes(payload_nbytes: int, pieces: int) -> int:
    """Room for a frame: 64 bytes are more than its header, and than each row of its table."""
    return 64 * (2 + pieces) + payload_nbytes
