"""``Leader`` and ``Follower``: average densely within a host, and compressed between hosts.

The first rank of each host leads: it averages the gradients of its host, takes part in the exchange
among the leaders with their mean, and sends the result to its host. So noise and traffic between
hosts do not grow with the number of ranks per host.
"""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.codec.dense import Float32, bytes_of
from thinwire.compressor.encoded import add_up
from thinwire.exchange.base import Exchange, Unit
from thinwire.exchange.link import Link, Wait
from thinwire.exchange.parcels import AlwaysDense, ParcelChannel
from thinwire.exchange.resharding import ExchangeState
from thinwire.exchange.roles import WorkerRole, decode_into, slice_of
from thinwire.gradient.pieces import Piece
from thinwire.watch.stats import Tally
from thinwire.wire.body import EncodedBytes
from thinwire.wire.messages import Push, Update

LEADER = 0


class Leader:
    """The rank of a host that talks to other hosts."""

    def __init__(
        self, between: Exchange, pieces: Sequence[Piece], links: tuple[Link, Link]
    ) -> None:
        """``between`` joins the leaders; ``links`` join this host, up and down."""
        self._between = between
        self.tally, self.worker = between.tally, between.worker
        self._up, self._down = (ParcelChannel(link, pieces, AlwaysDense()) for link in links)

    def open(self, unit: Unit) -> None:
        self._between.open(unit)

    def encode(self, unit: Unit, pieces: Sequence[Piece]) -> None:
        """Not before the gradients of this host are averaged."""

    def push(self, unit: Unit) -> None:
        channel = self._up
        parcels = [channel.expect(rank, unit.pieces, unit.info.step) for rank in channel.link.peers]
        wait = Wait(unit.what)
        for parcel in parcels:
            channel.open(parcel, Push, unit.info, wait)
        pushes = [dense(unit), *(channel.contents(parcel, wait) for parcel in parcels)]
        for piece, *column in zip(unit.pieces, *pushes, strict=True):
            add_up(column, 1 / channel.link.size, slice_of(unit.flat, piece))
        channel.give_back(parcels)
        self._between.push(unit)

    def answer(self, unit: Unit) -> None:
        self._between.answer(unit)

    def receive(self, unit: Unit) -> bool:
        link, wait = self._down.link, Wait(unit.what)
        finite = self._between.receive(unit)
        sent = self._down.send(link.peers, Update, unit.pieces, dense(unit), unit.info)
        link.finish(sent, wait)
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
        self._up, self._down = (ParcelChannel(link, pieces, AlwaysDense()) for link in links)
        self.tally = Tally()
        self.worker: WorkerRole | None = None

    def open(self, unit: Unit) -> None:
        """Followers send gradients from where they are."""

    def encode(self, unit: Unit, pieces: Sequence[Piece]) -> None:
        """Nothing is compressed here."""

    def push(self, unit: Unit) -> None:
        encoded = dense(unit)
        self.tally.push(unit.pieces, encoded)
        unit.sent_pushes = self._up.send([LEADER], Push, unit.pieces, encoded, unit.info)

    def answer(self, unit: Unit) -> None:
        """Followers do not serve, but the mean may come from here on."""
        parcel = self._down.expect(LEADER, unit.pieces, unit.info.step, unit.flat)
        unit.updates = {LEADER: parcel}

    def receive(self, unit: Unit) -> bool:
        parcel, wait = unit.updates[LEADER], Wait(unit.what)
        self._down.open(parcel, Update, unit.info, wait)
        update = self._down.contents(parcel, wait)
        decode_into(unit.flat, unit.pieces, update)
        self.tally.pull(unit.pieces, update)
        self._up.link.finish(unit.sent_pushes, wait)
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


def dense(unit: Unit) -> list[EncodedBytes]:
    """The pieces of a unit as they are: views of it."""
    slices = [slice_of(unit.flat, piece) for piece in unit.pieces]
    return [EncodedBytes(Float32.wire_id, x.numel(), bytes_of(x)) for x in slices]
