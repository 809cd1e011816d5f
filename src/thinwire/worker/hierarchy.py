"""Hosts first: dense among the ranks of a host, then compressed among the hosts.

The first rank of each host leads: it hears the gradients of its host, takes part in the exchange
among the leaders with their mean, and tells its host the result. So noise and traffic between hosts
do not grow with the number of ranks per host.
"""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.codec.dense import Float32, bytes_of
from thinwire.encoded import Encoded, add_up
from thinwire.gradient.pieces import Piece
from thinwire.wire.messages import Push, Update
from thinwire.worker.exchange import Exchange, Transit, Unit
from thinwire.worker.link import Link
from thinwire.worker.parcel import AlwaysDense, Post
from thinwire.worker.sides import WorkerSide, decode_into, slice_of
from thinwire.worker.state import ExchangeState
from thinwire.worker.stats import Tally

LEADER = 0


class Leader:
    """The rank of a host that talks to other hosts."""

    def __init__(
        self, between: Exchange, pieces: Sequence[Piece], links: tuple[Link, Link]
    ) -> None:
        """``between`` joins the leaders; ``links`` join this host, up and down."""
        self._between = between
        self.tally, self.worker = between.tally, between.worker
        self._up, self._down = (Post(link, pieces, AlwaysDense()) for link in links)

    def open(self, unit: Unit) -> Transit:
        return self._between.open(unit)

    def encode(self, transit: Transit, pieces: Sequence[Piece]) -> None:
        """The gradients of this host are added first."""

    def push(self, transit: Transit) -> None:
        unit, post = transit.unit, self._up
        own = dense(unit)
        parcels = [post.expect(rank, unit.pieces, unit.round.step) for rank in post.link.peers]
        for parcel in parcels:
            post.open(parcel, Push, step=unit.round.step, what=unit.what)
        heard = [own, *(post.contents(parcel, what=unit.what) for parcel in parcels)]
        for piece, *column in zip(unit.pieces, *heard, strict=True):
            add_up(column, 1 / post.link.size, slice_of(unit.flat, piece))
        post.give_back(parcels)
        self._between.push(transit)

    def answer(self, transit: Transit) -> None:
        self._between.answer(transit)

    def receive(self, transit: Transit) -> bool:
        unit, link = transit.unit, self._down.link
        finite = self._between.receive(transit)
        sent = self._down.send(link.peers, Update, unit.pieces, dense(unit), unit.round)
        link.finish(sent, what=unit.what)
        return finite

    def undo(self, step: int) -> None:
        self._between.undo(step)

    def state_dict(self) -> ExchangeState:
        return self._between.state_dict()

    def load_state_dict(self, state: ExchangeState) -> None:
        self._between.load_state_dict(state)

    def load_state_dicts(self, states: Sequence[ExchangeState]) -> None:
        self._between.load_state_dicts(states)


class Follower:
    """A rank that leaves the exchange, and all state of it, to the leader of its host."""

    def __init__(self, pieces: Sequence[Piece], links: Sequence[Link]) -> None:
        """``links`` join this host, up and down."""
        self._up, self._down = (Post(link, pieces, AlwaysDense()) for link in links)
        self.tally = Tally()
        self.worker: WorkerSide | None = None

    def open(self, unit: Unit) -> Transit:
        return Transit(unit)

    def encode(self, transit: Transit, pieces: Sequence[Piece]) -> None:
        """Nothing is compressed here."""

    def push(self, transit: Transit) -> None:
        unit, encoded = transit.unit, dense(transit.unit)
        self.tally.push(unit.pieces, encoded)
        transit.sent_pushes = self._up.send([LEADER], Push, unit.pieces, encoded, unit.round)

    def answer(self, transit: Transit) -> None:
        """Followers do not serve, but can be told from here on."""
        unit = transit.unit
        parcel = self._down.expect(LEADER, unit.pieces, unit.round.step, unit.flat)
        transit.updates = {LEADER: parcel}

    def receive(self, transit: Transit) -> bool:
        unit, parcel = transit.unit, transit.updates[LEADER]
        self._down.open(parcel, Update, step=unit.round.step, what=unit.what)
        update = self._down.contents(parcel, what=unit.what)
        decode_into(unit.flat, unit.pieces, update)
        self.tally.pull(unit.pieces, update)
        self._up.link.finish(transit.sent_pushes, what=unit.what)
        self._down.give_back([parcel])
        return True

    def undo(self, step: int) -> None:
        """There is no state here."""

    def state_dict(self) -> ExchangeState:
        return {}

    def load_state_dict(self, state: ExchangeState) -> None:
        """There is no state here."""

    def load_state_dicts(self, states: Sequence[ExchangeState]) -> None:
        """There is no state here."""


def dense(unit: Unit) -> list[Encoded]:
    """The pieces of a unit as they are: views of it."""
    slices = [slice_of(unit.flat, piece) for piece in unit.pieces]
    return [Encoded(Float32.wire_id, x.numel(), bytes_of(x)) for x in slices]
