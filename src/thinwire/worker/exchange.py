"""What an exchange is: the mean of all ranks' gradients, in three stages: push, answer, receive.

Each stage waits only for what other ranks sent in the stage before. So if each is run by a thread
of its own, for one unit after the other and on all ranks in the same order, many units are in
flight and no two ranks wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from torch import Tensor

from thinwire.codec.arena import HEAP, Arena
from thinwire.encoded import Encoded
from thinwire.gradient.pieces import Piece
from thinwire.worker.link import Pending
from thinwire.worker.parcel import Parcel
from thinwire.worker.sides import Round, WorkerSide
from thinwire.worker.state import ExchangeState
from thinwire.worker.stats import Tally


@dataclass(frozen=True)  # without slots: every wait for it is told what it waits for
class Unit:
    """Pieces that travel together, in the order of all, and their gradients: flat, float32, CPU.

    The exchange writes the mean over all ranks into ``flat``.
    """

    pieces: Sequence[Piece]
    flat: Mapping[str, Tensor]
    round: Round

    @cached_property
    def what(self) -> str:
        names = dict.fromkeys(piece.key.name for piece in self.pieces)
        return f"step {self.round.step}, gradients {', '.join(names)}"


@dataclass(slots=True)
class Transit:
    """A unit between two stages: what it waits for, and what is still being sent.

    ``shares`` are its pieces by the rank that owns them, if each has an owner. ``own`` is what this
    rank sends itself: first its pushes, then its updates.
    """

    unit: Unit
    arena: Arena = HEAP
    encoded: dict[Piece, Encoded] = field(default_factory=dict)
    """What is compressed already; the payloads are in ``arena``, or views of the unit."""
    shares: Sequence[Sequence[Piece]] = ()
    own: Sequence[Encoded] = ()
    pushes: dict[int, Parcel] = field(default_factory=dict)
    updates: dict[int, Parcel] = field(default_factory=dict)
    sent_pushes: list[Pending] = field(default_factory=list)
    sent_updates: list[Pending] = field(default_factory=list)
    payloads: list[Tensor] = field(default_factory=list)
    """Buffers that own payloads are in, until all is sent and decoded."""


class Exchange(Protocol):
    @property
    def tally(self) -> Tally:
        """The bytes so far."""

    @property
    def worker(self) -> WorkerSide | None:
        """What compresses here; None on a rank that leaves it to another."""

    def open(self, unit: Unit) -> Transit:
        """Make room for a unit, of which some gradients may not be there yet."""

    def encode(self, transit: Transit, pieces: Sequence[Piece]) -> None:
        """Compress some pieces that are there, because the caches may still hold them. Does nothing
        where they are needed as they are."""

    def push(self, transit: Transit) -> None:
        """Compress this rank's gradients, those that are not yet, and send them."""

    def answer(self, transit: Transit) -> None:
        """Serve: hear the pushes for what this rank owns, and answer them."""

    def receive(self, transit: Transit) -> bool:
        """Write the mean. Whether it is finite everywhere: if not, ``undo`` the step."""

    def undo(self, step: int) -> None:
        """Forget what ``step``, the newest one, did to any state."""

    def state_dict(self) -> ExchangeState:
        """What this rank owes."""

    def load_state_dict(self, state: ExchangeState) -> None: ...

    def load_state_dicts(self, states: Sequence[ExchangeState]) -> None:
        """Take over this rank's part of the states of all ranks of a run of any size."""
