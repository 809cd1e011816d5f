"""Averaging without a server process: every rank serves its share of the pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from thinwire.codec.arena import Slab
from thinwire.encoded import Encoded
from thinwire.gradient.pieces import Piece
from thinwire.gradient.placement import place
from thinwire.recipe import Recipe
from thinwire.wire.messages import Push, Update
from thinwire.worker.buffers import Buffers, slab
from thinwire.worker.exchange import Transit, Unit
from thinwire.worker.link import Link
from thinwire.worker.parcel import Post
from thinwire.worker.sides import (
    ServerSide,
    WorkerSide,
    decode_into,
    overflowed,
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
        self._rank, self._size = links[0].rank, links[0].size
        self._keeps_state = recipe.keeps_state
        self._pieces = pieces
        self._payloads = Buffers()
        self._owners = dict(zip(pieces, place(pieces, owners=self._size), strict=True))
        self.tally = Tally()
        self.worker = WorkerSide(recipe, rank=self._rank, workers=self._size, seed=seed)
        self.server = ServerSide(recipe, workers=self._size, seed=seed)
        self._pushes = Post(links[0], pieces, self.worker)
        self._updates = Post(links[1], pieces, self.server)
        self._prepare()

    def open(self, unit: Unit) -> Transit:
        transit = Transit(unit, shares=self._shares(unit))
        most_nbytes = self.worker.most_nbytes(unit.pieces, unit.round.step)
        transit.arena = self._arena(transit, most_nbytes)
        return transit

    def encode(self, transit: Transit, pieces: Sequence[Piece]) -> None:
        unit = transit.unit
        found = self.worker.push(pieces, unit.flat, unit.round, transit.arena)
        transit.encoded.update(zip(pieces, found, strict=True))

    def push(self, transit: Transit) -> None:
        unit, post = transit.unit, self._pushes
        own = transit.shares[self._rank]
        if own:
            step = unit.round.step
            transit.pushes = {r: post.expect(r, own, step) for r in post.link.peers}
        for rank in post.link.peers:
            if share := transit.shares[rank]:
                encoded = self._encoded(transit, share)
                transit.sent_pushes += post.send([rank], Push, share, encoded, unit.round)
        transit.own = self._encoded(transit, own)

    def answer(self, transit: Transit) -> None:
        unit, post = transit.unit, self._updates
        for rank in post.link.peers:
            if share := transit.shares[rank]:
                # A piece is answered when its owner has all pushes of it: this rank's may be a
                # view of the room, but is not needed any more.
                transit.updates[rank] = post.expect(rank, share, unit.round.step, unit.flat)
        if own := transit.shares[self._rank]:
            self._serve(transit, own)
            self._pushes.give_back(transit.pushes.values())

    def _serve(self, transit: Transit, own: Sequence[Piece]) -> None:
        """Answer one piece after the other, as pushes of it are there."""
        unit, post, peers = transit.unit, self._updates, self._updates.link.peers
        arena = self._arena(transit, self.server.most_nbytes(own, unit.round.step))
        updates: list[Encoded] = []
        for piece, *pushes in zip(own, *self._hear(transit), strict=True):
            # This rank's own gradient is encoded, so its place is free for the sum.
            update = self.server.answer_piece(piece, pushes, unit.round, unit.flat, arena)
            transit.sent_updates += post.send_foreseen(peers, piece, update, unit.round)
            updates.append(update)
        transit.sent_updates += post.send_frame(peers, Update, own, updates, unit.round)
        transit.own = updates

    def receive(self, transit: Transit) -> bool:
        unit, post, finite = transit.unit, self._updates, True
        for parcel in transit.updates.values():
            post.open(parcel, Update, step=unit.round.step, what=unit.what)
        for rank, share in enumerate(transit.shares):
            if share:
                update = transit.own
                if rank != self._rank:
                    update = post.contents(transit.updates[rank], what=unit.what)
                decode_into(unit.flat, share, update)
                self.tally.pull(share, update)
                if self._keeps_state and overflowed(unit.flat, share, update):
                    finite = False
        self._pushes.link.finish(transit.sent_pushes, what=unit.what)
        post.link.finish(transit.sent_updates, what=unit.what)
        post.give_back(transit.updates.values())
        self._payloads.give(*transit.payloads)
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

    def _shares(self, unit: Unit) -> list[list[Piece]]:
        shares: list[list[Piece]] = [[] for _ in range(self._size)]
        for piece in unit.pieces:
            shares[self._owners[piece]].append(piece)
        return shares

    def _arena(self, transit: Transit, most_nbytes: int) -> Slab:
        """Memory for payloads, which ``receive`` gives back: they are sent, and read here."""
        transit.payloads.append(self._payloads.take(most_nbytes))
        return slab(transit.payloads[-1])

    def _encoded(self, transit: Transit, share: Sequence[Piece]) -> list[Encoded]:
        self.encode(transit, [piece for piece in share if piece not in transit.encoded])
        encoded = [transit.encoded[piece] for piece in share]
        self.tally.push(share, encoded)
        return encoded

    def _hear(self, transit: Transit) -> list[Iterable[Encoded]]:
        """The pushes of all ranks for what this one owns, in the order of ranks.

        Each piece is waited for when it is asked for.
        """
        what, step = transit.unit.what, transit.unit.round.step
        for parcel in transit.pushes.values():
            self._pushes.open(parcel, Push, step=step, what=what)
        return [
            transit.own
            if rank == self._rank
            else self._pushes.each(transit.pushes[rank], what=what)
            for rank in range(self._size)
        ]
