"""Averaging in one pass: every rank hears every push (Deep Gradient Compression)."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.codec import registry
from thinwire.encoded import Encoded, add_up
from thinwire.gradient.pieces import Piece
from thinwire.recipe import Recipe
from thinwire.wire.messages import Push
from thinwire.worker.buffers import Buffers, slab
from thinwire.worker.exchange import Transit, Unit
from thinwire.worker.link import Link
from thinwire.worker.parcel import Post
from thinwire.worker.sides import WorkerSide, overflowed, slice_of
from thinwire.worker.state import (
    ExchangeState,
    by_parameter,
    by_piece,
    join_pieces,
    owe_also,
    reassign,
)
from thinwire.worker.stats import Tally


class AllGather:
    """The answer is not compressed again, so the recipe's ``pull`` is not used.

    Bytes received grow with the number of ranks: right for few.
    """

    def __init__(
        self, recipe: Recipe, pieces: Sequence[Piece], links: tuple[Link, Link], *, seed: int
    ) -> None:
        """Only the first of ``links`` is used."""
        self._keeps_state = recipe.keeps_state
        self._pieces = pieces
        self._payloads = Buffers()
        self.tally = Tally()
        rank, workers = links[0].rank, links[0].size
        self.worker = WorkerSide(recipe, rank=rank, workers=workers, seed=seed)
        self.worker.compressor.prepare(pieces)
        self._post = Post(links[0], pieces, self.worker)

    def open(self, unit: Unit) -> Transit:
        buffer = self._payloads.take(self.worker.most_nbytes(unit.pieces, unit.round.step))
        return Transit(unit, slab(buffer), payloads=[buffer])

    def encode(self, transit: Transit, pieces: Sequence[Piece]) -> None:
        unit = transit.unit
        found = self.worker.push(pieces, unit.flat, unit.round, transit.arena, clear=True)
        transit.encoded.update(zip(pieces, found, strict=True))

    def push(self, transit: Transit) -> None:
        unit, peers, pieces = transit.unit, self._post.link.peers, transit.unit.pieces
        step = unit.round.step
        transit.pushes = {rank: self._post.expect(rank, pieces, step) for rank in peers}
        self.encode(transit, [piece for piece in pieces if piece not in transit.encoded])
        transit.own = [transit.encoded[piece] for piece in pieces]
        self.tally.push(pieces, transit.own)
        transit.sent_pushes = self._post.send(peers, Push, pieces, transit.own, unit.round)

    def answer(self, transit: Transit) -> None:
        """Nobody serves."""

    def receive(self, transit: Transit) -> bool:
        unit, pushes = transit.unit, self._hear(transit)
        # This rank's own payloads may be views of where the mean goes, and are sent from there.
        self._post.link.finish(transit.sent_pushes, what=unit.what)
        for piece, own, *column in zip(unit.pieces, transit.own, *pushes, strict=True):
            cleared = registry.codec_class(own.wire_id).sparse
            mean = slice_of(unit.flat, piece)
            add_up(column, 1 / self._post.link.size, mean, cleared=cleared)
        finite = not (self._keeps_state and overflowed(unit.flat, unit.pieces, *pushes))
        self._post.give_back(transit.pushes.values())
        self._payloads.give(*transit.payloads)
        return finite

    def undo(self, step: int) -> None:
        self.worker.compressor.undo_step(step)

    def state_dict(self) -> ExchangeState:
        return {"push": by_parameter(self._pieces, self.worker.compressor.state_dict()), "pull": {}}

    def load_state_dict(self, state: ExchangeState) -> None:
        self.worker.compressor.load_state_dict(by_piece(self._pieces, state.get("push", {})))
        self.worker.compressor.prepare(self._pieces)

    def load_state_dicts(self, states: Sequence[ExchangeState]) -> None:
        states = [state for state in states if state]
        pushes = [state.get("push", {}) for state in states]
        own = reassign(pushes, workers=self._post.link.size)[self._post.link.rank]
        pulls = join_pieces([state.get("pull", {}) for state in states])
        self.load_state_dict({"push": owe_also(own, pulls), "pull": {}})

    def _hear(self, transit: Transit) -> list[Sequence[Encoded]]:
        """The pushes of all ranks, in the order of ranks."""
        post, unit = self._post, transit.unit
        for parcel in transit.pushes.values():
            post.open(parcel, Push, step=unit.round.step, what=unit.what)
        heard = {r: post.contents(parcel, what=unit.what) for r, parcel in transit.pushes.items()}
        for push in heard.values():
            self.tally.pull(unit.pieces, push)
        return [heard.get(rank, transit.own) for rank in range(post.link.size)]
