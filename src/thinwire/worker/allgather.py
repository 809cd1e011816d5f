"""Averaging in one pass: every rank hears every push (Deep Gradient Compression)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thinwire import _native
from thinwire.codec import registry
from thinwire.compressor import Encoded
from thinwire.gradient.pieces import Piece
from thinwire.recipe import Recipe
from thinwire.wire.messages import Push
from thinwire.worker.exchange import Transit, Unit
from thinwire.worker.link import Link
from thinwire.worker.sides import WorkerSide, entries, read, slice_of
from thinwire.worker.state import ExchangeState, by_parameter, by_piece, reassign
from thinwire.worker.stats import Tally


class AllGather:
    """The answer is not compressed again, so the recipe's ``pull`` is not used.

    Bytes received grow with the number of ranks: right for few.
    """

    def __init__(
        self, recipe: Recipe, pieces: Sequence[Piece], links: tuple[Link, Link], *, seed: int
    ) -> None:
        """Only the first of ``links`` is used."""
        self._link = links[0]
        self._keeps_state = recipe.keeps_state
        self._pieces = pieces
        self._numbers = {piece: number for number, piece in enumerate(pieces)}
        self.tally = Tally()
        self.worker = WorkerSide(recipe, rank=self._link.rank, workers=self._link.size, seed=seed)
        self.worker.compressor.prepare(pieces)

    def push(self, unit: Unit) -> Transit:
        transit, link, round_ = Transit(unit), self._link, unit.round
        most = self.worker.most_nbytes(unit.pieces, round_.step)
        transit.pushes = {r: link.receive(r, most_nbytes=most) for r in link.peers}
        transit.own = self.worker.push(unit.pieces, unit.flat, round_)
        self.tally.push(unit.pieces, transit.own)
        numbered = entries([self._numbers[piece] for piece in unit.pieces], transit.own)
        message = Push(round_.step, round_.learning_rate or 0.0, numbered)
        transit.sent_pushes = link.send_all(message, step=round_.step, most_nbytes=most)
        return transit

    def answer(self, transit: Transit) -> None:
        """Nobody serves."""

    def receive(self, transit: Transit) -> bool:
        unit, link, finite = transit.unit, self._link, True
        pushes = [self._push_of(rank, transit) for rank in range(link.size)]
        for rank in link.peers:
            self.tally.pull(unit.pieces, pushes[rank])
        for piece, *column in zip(unit.pieces, *pushes, strict=True):
            # Not into its place at once: this rank's own push may be a view of it.
            mean = torch.zeros(piece.numel)
            for push in column:
                registry.add(push.wire_id, push.payload, mean, weight=1 / link.size)
            slice_of(unit.flat, piece).copy_(mean)
            finite = finite and (not self._keeps_state or _native.all_finite(mean))
        link.finish(transit.sent_pushes, what=unit.what)
        link.give_back(transit.pushes.values())
        return finite

    def undo(self, step: int) -> None:
        self.worker.compressor.undo_step(step)

    def state_dict(self) -> ExchangeState:
        return {"push": by_parameter(self._pieces, self.worker.compressor.state_dict()), "pull": {}}

    def load_state_dict(self, state: ExchangeState) -> None:
        self.worker.compressor.load_state_dict(by_piece(self._pieces, state.get("push", {})))
        self.worker.compressor.prepare(self._pieces)

    def load_state_dicts(self, states: Sequence[ExchangeState]) -> None:
        pushes = [state.get("push", {}) for state in states if state]
        own = reassign(pushes, workers=self._link.size)[self._link.rank]
        self.load_state_dict({"push": own, "pull": {}})

    def _push_of(self, rank: int, transit: Transit) -> Sequence[Encoded]:
        if rank == self._link.rank:
            return transit.own
        unit = transit.unit
        frame = self._link.frame(transit.pushes[rank], step=unit.round.step, what=unit.what)
        numbers = [self._numbers[piece] for piece in unit.pieces]
        return read(frame, Push, numbers=numbers, pieces=unit.pieces)
