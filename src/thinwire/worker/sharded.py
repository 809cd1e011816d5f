"""Averaging without a server process: every rank serves its share of the pieces."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.compressor import Encoded
from thinwire.gradient.pieces import Piece
from thinwire.gradient.placement import place
from thinwire.recipe import Recipe
from thinwire.wire.body import Entry
from thinwire.wire.messages import Push, Update
from thinwire.worker.exchange import Transit, Unit
from thinwire.worker.link import Link, Pending
from thinwire.worker.sides import (
    ServerSide,
    WorkerSide,
    decode_into,
    entries,
    overflowed,
    read,
)
from thinwire.worker.state import ExchangeState, by_parameter, by_piece, join_pieces, reassign
from thinwire.worker.stats import Tally


class Sharded:
    """DoubleSqueeze in two passes: pushes to the owners of the pieces, their answers back.

    Bytes per rank do not grow with the number of ranks.
    """

    def __init__(
        self, recipe: Recipe, pieces: Sequence[Piece], links: tuple[Link, Link], *, seed: int
    ) -> None:
        """``links`` join the same ranks, one for pushes and one for updates."""
        self._push_link, self._update_link = links
        self._rank, self._size = links[0].rank, links[0].size
        self._keeps_state = recipe.keeps_state
        self._pieces = pieces
        self._numbers = {piece: number for number, piece in enumerate(pieces)}
        self._owners = dict(zip(pieces, place(pieces, owners=self._size), strict=True))
        self.tally = Tally()
        self.worker = WorkerSide(recipe, rank=self._rank, workers=self._size, seed=seed)
        self.server = ServerSide(recipe, workers=self._size, seed=seed)
        self._prepare()

    def push(self, unit: Unit) -> Transit:
        transit, link = Transit(unit), self._push_link
        own = self._share(unit, self._rank)
        if own:
            most = self.worker.most_nbytes(own, unit.round.step)
            transit.pushes = {r: link.receive(r, most_nbytes=most) for r in link.peers}
        for rank in link.peers:
            if share := self._share(unit, rank):
                transit.sent_pushes.append(self._send_push(rank, share, unit))
        transit.own = self._encode(own, unit)
        return transit

    def answer(self, transit: Transit) -> None:
        unit, link = transit.unit, self._update_link
        for rank in link.peers:
            if share := self._share(unit, rank):
                most = self.server.most_nbytes(share, unit.round.step)
                transit.updates[rank] = link.receive(rank, most_nbytes=most)
        if own := self._share(unit, self._rank):
            transit.own = self._answers(own, transit)
            message = Update(unit.round.step + 1, self._entries(own, transit.own))
            most = self.server.most_nbytes(own, unit.round.step)
            transit.sent_updates = link.send_all(message, step=unit.round.step, most_nbytes=most)

    def receive(self, transit: Transit) -> bool:
        unit, finite = transit.unit, True
        for rank in range(self._size):
            if share := self._share(unit, rank):
                update = self._update_of(rank, share, transit)
                decode_into(unit.flat, share, update)
                self.tally.pull(share, update)
                if self._keeps_state and overflowed(unit.flat, share, update):
                    finite = False
        self._push_link.finish(transit.sent_pushes, what=unit.what)
        self._update_link.finish(transit.sent_updates, what=unit.what)
        self._update_link.give_back(transit.updates.values())
        return finite

    def undo(self, step: int) -> None:
        self.worker.compressor.undo_step(step)
        self.server.compressor.undo_step(step)

    def state_dict(self) -> ExchangeState:
        return {
            "push": by_parameter(self._pieces, self.worker.compressor.state_dict()),
            "pull": self.server.compressor.state_dict(),
        }

    def load_state_dict(self, state: ExchangeState) -> None:
        self.worker.compressor.load_state_dict(by_piece(self._pieces, state.get("push", {})))
        self.server.compressor.load_state_dict(state.get("pull", {}))
        self._prepare()

    def load_state_dicts(self, states: Sequence[ExchangeState]) -> None:
        states = [state for state in states if state]
        pushes = reassign([state.get("push", {}) for state in states], workers=self._size)
        pulls = join_pieces([state.get("pull", {}) for state in states])
        mine = {piece.name for piece in self._owned()}
        pull = {n: state for n, state in by_piece(self._pieces, pulls).items() if n in mine}
        self.load_state_dict({"push": pushes[self._rank], "pull": pull})

    def _prepare(self) -> None:
        self.worker.compressor.prepare(self._pieces)
        self.server.compressor.prepare(self._owned())

    def _owned(self) -> list[Piece]:
        return [piece for piece in self._pieces if self._owners[piece] == self._rank]

    def _share(self, unit: Unit, rank: int) -> list[Piece]:
        return [piece for piece in unit.pieces if self._owners[piece] == rank]

    def _entries(self, share: Sequence[Piece], encoded: Sequence[Encoded]) -> tuple[Entry, ...]:
        return entries(self._numbers_of(share), encoded)

    def _numbers_of(self, share: Sequence[Piece]) -> list[int]:
        return [self._numbers[piece] for piece in share]

    def _encode(self, share: Sequence[Piece], unit: Unit) -> list[Encoded]:
        encoded = self.worker.push(share, unit.flat, unit.round)
        self.tally.push(share, encoded)
        return encoded

    def _send_push(self, rank: int, share: Sequence[Piece], unit: Unit) -> Pending:
        round_ = unit.round
        encoded = self._encode(share, unit)
        message = Push(round_.step, round_.learning_rate or 0.0, self._entries(share, encoded))
        most = self.worker.most_nbytes(share, round_.step)
        return self._push_link.send(rank, message, step=round_.step, most_nbytes=most)

    def _answers(self, own: Sequence[Piece], transit: Transit) -> list[Encoded]:
        pushes = [self._push_of(rank, own, transit) for rank in range(self._size)]
        # This rank's own gradient is encoded, so its place is free for the sum.
        answers = self.server.answer(own, pushes, transit.unit.round, room=transit.unit.flat)
        self._push_link.give_back(transit.pushes.values())
        return answers

    def _push_of(self, rank: int, own: Sequence[Piece], transit: Transit) -> Sequence[Encoded]:
        if rank == self._rank:
            return transit.own
        unit = transit.unit
        frame = self._push_link.frame(transit.pushes[rank], step=unit.round.step, what=unit.what)
        return read(frame, Push, numbers=self._numbers_of(own), pieces=own)

    def _update_of(self, rank: int, share: Sequence[Piece], transit: Transit) -> Sequence[Encoded]:
        if rank == self._rank:
            return transit.own
        unit = transit.unit
        frame = self._update_link.frame(transit.updates[rank], step=unit.round.step, what=unit.what)
        return read(frame, Update, numbers=self._numbers_of(share), pieces=share)
