"""``Sharded``: averaging without a server, where every rank serves its share of the pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from thinwire.codec.arena import Slab
from thinwire.exchange.base import Unit
from thinwire.exchange.link import Buffers, Link, Wait, slab
from thinwire.exchange.parcels import ParcelChannel
from thinwire.exchange.resharding import (
    ExchangeState,
    by_parameter,
    by_piece,
    join_pieces,
    reassign,
)
from thinwire.exchange.roles import ServerRole, WorkerRole, decode_into, overflowed
from thinwire.gradient.pieces import Piece, place
from thinwire.recipe import Recipe
from thinwire.watch.stats import Tally
from thinwire.wire.body import EncodedBytes
from thinwire.wire.messages import Push, Update


class Sharded:
    """DoubleSqueeze as a reduce-scatter and an all-gather: pushes to owners, their answers back.

    Bytes per rank do not grow with the number of ranks.
    """

    def __init__(
        self,
        recipe: Recipe,
        pieces: Sequence[Piece],
        links: tuple[Link, Link],
        *,
        seed: int,
        undo: bool,
    ) -> None:
        """``links`` join the same ranks, one for pushes and one for updates. With ``undo`` steps
        can be undone."""
        self._rank, self._size = links[0].rank, links[0].size
        self._keeps_state = recipe.keeps_state
        self._pieces = pieces
        self._payloads = Buffers()
        self._owners = dict(zip(pieces, place(pieces, owners=self._size), strict=True))
        self.tally = Tally()
        self.worker = WorkerRole(recipe, rank=self._rank, workers=self._size, seed=seed, undo=undo)
        self.server = ServerRole(recipe, workers=self._size, seed=seed, undo=undo)
        self._pushes = ParcelChannel(links[0], pieces, self.worker)
        self._updates = ParcelChannel(links[1], pieces, self.server)
        self._prepare()

    def open(self, unit: Unit) -> None:
        unit.shares = self._shares(unit)
        unit.arena = self._arena(unit, self.worker.most_nbytes(unit.pieces, unit.info.step))

    def encode(self, unit: Unit, pieces: Sequence[Piece]) -> None:
        encoded = self.worker.push(pieces, unit.flat, unit.info, unit.arena)
        unit.encoded.update(zip(pieces, encoded, strict=True))

    def push(self, unit: Unit) -> None:
        channel = self._pushes
        owned = unit.shares[self._rank]
        if owned:
            step = unit.info.step
            unit.pushes = {r: channel.expect(r, owned, step) for r in channel.link.peers}
        for rank in channel.link.peers:
            if share := unit.shares[rank]:
                encoded = self._encoded(unit, share)
                unit.sent_pushes += channel.send([rank], Push, share, encoded, unit.info)
        unit.local = self._encoded(unit, owned)

    def answer(self, unit: Unit) -> None:
        channel = self._updates
        for rank in channel.link.peers:
            if share := unit.shares[rank]:
                # A piece is answered when its owner has all pushes of it: this rank's may be a
                # view of the room, but is not needed any more.
                unit.updates[rank] = channel.expect(rank, share, unit.info.step, unit.flat)
        if owned := unit.shares[self._rank]:
            self._serve(unit, owned)
            self._pushes.give_back(unit.pushes.values())

    def _serve(self, unit: Unit, owned: Sequence[Piece]) -> None:
        """Answer one piece after the other, as soon as its pushes are complete."""
        channel, peers = self._updates, self._updates.link.peers
        arena = self._arena(unit, self.server.most_nbytes(owned, unit.info.step))
        updates: list[EncodedBytes] = []
        for piece, *pushes in zip(owned, *self._all_pushes(unit), strict=True):
            # This rank's own gradient is encoded, so its place is free for the sum.
            update = self.server.answer_piece(piece, pushes, unit.info, unit.flat, arena)
            unit.sent_updates += channel.send_foreseen(peers, piece, update, unit.info)
            updates.append(update)
        unit.sent_updates += channel.send_frame(peers, Update, owned, updates, unit.info)
        unit.local = updates

    def receive(self, unit: Unit) -> bool:
        channel, wait, finite = self._updates, Wait(unit.what), True
        for parcel in unit.updates.values():
            channel.open(parcel, Update, unit.info, wait)
        for rank, share in enumerate(unit.shares):
            if share:
                update = unit.local
                if rank != self._rank:
                    update = channel.contents(unit.updates[rank], wait)
                decode_into(unit.flat, share, update)
                self.tally.pull(share, update)
                if self._keeps_state and overflowed(unit.flat, share, update):
                    finite = False
        self._pushes.link.finish(unit.sent_pushes, wait)
        channel.link.finish(unit.sent_updates, wait)
        channel.give_back(unit.updates.values())
        self._payloads.give(*unit.payloads)
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
        push, pull = by_piece(self._pieces, state.get("push", {})), state.get("pull", {})
        self.server.compressor.check_state_dict(pull)  # so that nothing is loaded by half
        self.worker.compressor.load_state_dict(push)
        self.server.compressor.load_state_dict(pull)
        self._prepare()

    def load_state_dicts(self, states: Sequence[ExchangeState]) -> None:
        states = [state for state in states if state]
        pushes = reassign([state.get("push", {}) for state in states], workers=self._size)
        pulls = join_pieces([state.get("pull", {}) for state in states])
        owned = {piece.name for piece in self._owned()}
        pull = {n: state for n, state in by_piece(self._pieces, pulls).items() if n in owned}
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

    def _arena(self, unit: Unit, most_nbytes: int) -> Slab:
        """Memory for payloads, which ``receive`` gives back: they are sent, and read here."""
        unit.payloads.append(self._payloads.take(most_nbytes))
        return slab(unit.payloads[-1])

    def _encoded(self, unit: Unit, share: Sequence[Piece]) -> list[EncodedBytes]:
        self.encode(unit, [piece for piece in share if piece not in unit.encoded])
        encoded = [unit.encoded[piece] for piece in share]
        self.tally.push(share, encoded)
        return encoded

    def _all_pushes(self, unit: Unit) -> list[Iterable[EncodedBytes]]:
        """Iterate over the pushes of all ranks for what this one owns, in the order of ranks.

        The iterators wait for each piece when it is due.
        """
        wait, info = Wait(unit.what), unit.info
        for parcel in unit.pushes.values():
            self._pushes.open(parcel, Push, info, wait)
        return [
            unit.local if rank == self._rank else self._pushes.each(unit.pushes[rank], wait)
            for rank in range(self._size)
        ]
