"""``AllGather``: averaging in one pass: every rank gets every push (Deep Gradient Compression)."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.codec import registry
from thinwire.compressor.encoded import add_up
from thinwire.exchange.base import Unit
from thinwire.exchange.link import Buffers, Link, Wait, slab
from thinwire.exchange.parcels import ParcelChannel
from thinwire.exchange.resharding import (
    ExchangeState,
    by_parameter,
    by_piece,
    join_pieces,
    owe_also,
    reassign,
)
from thinwire.exchange.roles import WorkerRole, overflowed, slice_of
from thinwire.gradient.pieces import Piece
from thinwire.recipe import Recipe
from thinwire.watch.stats import Tally
from thinwire.wire.body import EncodedBytes
from thinwire.wire.messages import Push


class AllGather:
    """The mean is not compressed again, so the recipe's ``pull`` is not used.

    Bytes received grow with the number of ranks: right for few.
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
        """Only the first of ``links`` is used. With ``undo`` steps can be undone."""
        self._keeps_state = recipe.keeps_state
        self._pieces = pieces
        self._payloads = Buffers()
        self.tally = Tally()
        rank, workers = links[0].rank, links[0].size
        self.worker = WorkerRole(recipe, rank=rank, workers=workers, seed=seed, undo=undo)
        self.worker.compressor.prepare(pieces)
        self._channel = ParcelChannel(links[0], pieces, self.worker)

    def open(self, unit: Unit) -> None:
        buffer = self._payloads.take(self.worker.most_nbytes(unit.pieces, unit.info.step))
        unit.arena = slab(buffer)
        unit.payloads.append(buffer)

    def encode(self, unit: Unit, pieces: Sequence[Piece]) -> None:
        encoded = self.worker.push(pieces, unit.flat, unit.info, unit.arena, clear=True)
        unit.encoded.update(zip(pieces, encoded, strict=True))

    def push(self, unit: Unit) -> None:
        peers, pieces, step = self._channel.link.peers, unit.pieces, unit.info.step
        unit.pushes = {rank: self._channel.expect(rank, pieces, step) for rank in peers}
        self.encode(unit, [piece for piece in pieces if piece not in unit.encoded])
        unit.local = [unit.encoded[piece] for piece in pieces]
        self.tally.push(pieces, unit.local)
        unit.sent_pushes = self._channel.send(peers, Push, pieces, unit.local, unit.info)

    def answer(self, unit: Unit) -> None:
        """No rank serves: all have all pushes."""

    def receive(self, unit: Unit) -> bool:
        wait = Wait(unit.what)
        pushes = self._all_pushes(unit, wait)
        # This rank's own payloads may be views of where the mean goes, and are sent from there.
        self._channel.link.finish(unit.sent_pushes, wait)
        for piece, local, *column in zip(unit.pieces, unit.local, *pushes, strict=True):
            cleared = registry.codec_class(local.wire_id).sparse
            mean = slice_of(unit.flat, piece)
            add_up(column, 1 / self._channel.link.size, mean, cleared=cleared)
        finite = not (self._keeps_state and overflowed(unit.flat, unit.pieces, *pushes))
        self._channel.give_back(unit.pushes.values())
        self._payloads.give(*unit.payloads)
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
        link = self._channel.link
        push = reassign(pushes, workers=link.size)[link.rank]
        pulls = join_pieces([state.get("pull", {}) for state in states])
        self.load_state_dict({"push": owe_also(push, pulls), "pull": {}})

    def _all_pushes(self, unit: Unit, wait: Wait) -> list[Sequence[EncodedBytes]]:
        """Wait for the pushes of all ranks; they are in the order of ranks."""
        channel = self._channel
        for parcel in unit.pushes.values():
            channel.open(parcel, Push, unit.info, wait)
        received = {r: channel.contents(parcel, wait) for r, parcel in unit.pushes.items()}
        for push in received.values():
            self.tally.pull(unit.pieces, push)
        return [received.get(rank, unit.local) for rank in range(channel.link.size)]
