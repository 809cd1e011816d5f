"""Hosts first: dense among the ranks of a host, then compressed among the hosts.

The first rank of each host leads: it hears the gradients of its host, takes part in the exchange
among the leaders with their mean, and tells its host the result. So noise and traffic between hosts
do not grow with the number of ranks per host.
"""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.codec import registry
from thinwire.codec.dense import Float32, bytes_of
from thinwire.compressor import Encoded
from thinwire.wire.frame import HEADER_NBYTES
from thinwire.wire.messages import Push, Update
from thinwire.worker.exchange import Exchange, Transit, Unit
from thinwire.worker.link import Link
from thinwire.worker.sides import WorkerSide, decode_into, entries, read, slice_of
from thinwire.worker.state import ExchangeState
from thinwire.worker.stats import Tally

LEADER = 0


class Leader:
    """The rank of a host that talks to other hosts."""

    def __init__(self, between: Exchange, links: tuple[Link, Link]) -> None:
        """``between`` joins the leaders; ``links`` join this host, up and down."""
        self._between = between
        self.tally, self.worker = between.tally, between.worker
        self._up, self._down = links

    def push(self, unit: Unit) -> Transit:
        most = dense_nbytes(unit)
        heard = [self._up.receive(rank, most_nbytes=most) for rank in self._up.peers]
        weight = 1 / self._up.size
        for piece in unit.pieces:
            slice_of(unit.flat, piece).mul_(weight)
        for pending in heard:
            frame = self._up.frame(pending, step=unit.round.step, what=unit.what)
            pushes = read(frame, Push, numbers=range(len(unit.pieces)), pieces=unit.pieces)
            for piece, push in zip(unit.pieces, pushes, strict=True):
                out = slice_of(unit.flat, piece)
                registry.add(push.wire_id, push.payload, out, weight=weight)
        self._up.give_back(heard)
        return self._between.push(unit)

    def answer(self, transit: Transit) -> None:
        self._between.answer(transit)

    def receive(self, transit: Transit) -> bool:
        unit = transit.unit
        finite = self._between.receive(transit)
        message = Update(unit.round.step + 1, entries(range(len(unit.pieces)), dense(unit)))
        sent = self._down.send_all(message, step=unit.round.step, most_nbytes=dense_nbytes(unit))
        self._down.finish(sent, what=unit.what)
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

    def __init__(self, links: tuple[Link, Link]) -> None:
        self._up, self._down = links
        self.tally = Tally()
        self.worker: WorkerSide | None = None

    def push(self, unit: Unit) -> Transit:
        transit, round_, encoded = Transit(unit), unit.round, dense(unit)
        self.tally.push(unit.pieces, encoded)
        rate = round_.learning_rate or 0.0
        message = Push(round_.step, rate, entries(range(len(unit.pieces)), encoded))
        most = dense_nbytes(unit)
        transit.sent_pushes = [self._up.send(LEADER, message, step=round_.step, most_nbytes=most)]
        return transit

    def answer(self, transit: Transit) -> None:
        """Followers do not serve, but can be told from here on."""
        most = dense_nbytes(transit.unit)
        transit.updates = {LEADER: self._down.receive(LEADER, most_nbytes=most)}

    def receive(self, transit: Transit) -> bool:
        unit, pending = transit.unit, transit.updates[LEADER]
        frame = self._down.frame(pending, step=unit.round.step, what=unit.what)
        update = read(frame, Update, numbers=range(len(unit.pieces)), pieces=unit.pieces)
        decode_into(unit.flat, unit.pieces, update)
        self.tally.pull(unit.pieces, update)
        self._up.finish(transit.sent_pushes, what=unit.what)
        self._down.give_back([pending])
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


def dense_nbytes(unit: Unit) -> int:
    """Room for a frame of all pieces as they are."""
    return HEADER_NBYTES + 64 * (1 + len(unit.pieces)) + 4 * sum(p.numel for p in unit.pieces)
