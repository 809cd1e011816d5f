"""``Exchange``: the mean of all ranks' gradients, in three stages: push, answer, receive.

A ``UnitJob`` is one ``Unit`` on its way through them.

Each stage waits only for what other ranks sent in the stage before. So if each is run by a thread
of its own, for one unit after the other and on all ranks in the same order, many units are in
flight and no two ranks wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from torch import Tensor

from thinwire.codec.arena import HEAP, Arena
from thinwire.exchange.link import Pending
from thinwire.exchange.parcels import Parcel
from thinwire.exchange.resharding import ExchangeState
from thinwire.exchange.roles import WorkerRole
from thinwire.gradient.pieces import Piece
from thinwire.gradient.steps import StepInfo
from thinwire.watch.stats import Tally
from thinwire.watch.trace import Span
from thinwire.wire.body import EncodedBytes


@dataclass(eq=False)  # without slots: every wait asks for ``what``
class Unit:
    """Pieces that travel together, in the order of all, and how far their exchange is.

    The exchange writes the mean over all ranks into ``flat``: float32 in CPU memory, by parameter.
    Stages hand on to each other what they wait for, and what is still being sent.
    """

    pieces: Sequence[Piece]
    flat: Mapping[str, Tensor]
    info: StepInfo
    arena: Arena = HEAP
    encoded: dict[Piece, EncodedBytes] = field(default_factory=dict)
    """What is compressed already; the payloads are in ``arena``, or views of ``flat``."""
    shares: Sequence[Sequence[Piece]] = ()
    """The pieces by the rank that owns them, if each has an owner."""
    local: Sequence[EncodedBytes] = ()
    """What this rank sends itself: first its pushes, then its updates."""
    pushes: dict[int, Parcel] = field(default_factory=dict)
    updates: dict[int, Parcel] = field(default_factory=dict)
    sent_pushes: list[Pending] = field(default_factory=list)
    sent_updates: list[Pending] = field(default_factory=list)
    payloads: list[Tensor] = field(default_factory=list)
    """Buffers of this rank's payloads, until all of them are sent and decoded."""

    @cached_property
    def what(self) -> str:
        """Its name in errors and traces."""
        names = dict.fromkeys(piece.key.name for piece in self.pieces)
        return f"step {self.info.step}, gradients {', '.join(names)}"


class Endpoint(Protocol):
    """A way out of this process: a link to other ranks, or the sessions with servers."""

    span: Span

    @property
    def sent_nbytes(self) -> int: ...

    @property
    def received_nbytes(self) -> int: ...

    def leave(self, text: str, *, step: int) -> None:
        """Tell all peers why this rank stops."""

    def close(self) -> None:
        """Say that this rank is done, where that is expected. Does not wait."""


class Exchange(Protocol):
    """How ranks average. Write a new one against this."""

    @property
    def tally(self) -> Tally:
        """The bytes so far."""

    @property
    def worker(self) -> WorkerRole | None:
        """What compresses here; None on a rank that leaves it to its leader."""

    def open(self, unit: Unit) -> None:
        """Make room for a unit, of which some gradients may not be there yet."""

    def encode(self, unit: Unit, pieces: Sequence[Piece]) -> None:
        """Compress some pieces that are there, because the caches may still hold them. Does nothing
        where they are needed as they are."""

    def push(self, unit: Unit) -> None:
        """Compress this rank's gradients, those that are not yet, and send them."""

    def answer(self, unit: Unit) -> None:
        """Serve: wait for the pushes to what this rank owns, and answer them."""

    def receive(self, unit: Unit) -> bool:
        """Write the mean. Whether it is finite everywhere: if not, ``undo`` the step."""

    def undo(self, step: int) -> None:
        """Forget what ``step``, the newest one, did to any state."""

    def state_dict(self) -> ExchangeState:
        """What this rank owes."""

    def load_state_dict(self, state: ExchangeState) -> None: ...

    def load_state_dicts(self, states: Sequence[ExchangeState]) -> None:
        """Take over this rank's part of the states of all ranks of a run of any size."""


@dataclass(slots=True)
class StepExchange:
    """The exchange of one step: what its units have in common, and if all means are finite."""

    info: StepInfo
    finite: bool = True


class GradientBuffer(Protocol):
    """Where the gradients of one or more units are, and where their mean goes."""

    def unit(self, pieces: Sequence[Piece], info: StepInfo) -> Unit:
        """Wait for these pieces to be here, and make a unit of them."""

    def store(self) -> bool:
        """All means are here: copy them where they belong. False if a number overflows there."""

    def complete(self) -> None:
        """Let those go on that wait for this buffer, also after an error."""


class UnitJob:
    """The stages of one unit. The last of a buffer completes it; the last of a step ends that."""

    def __init__(
        self,
        exchange: Exchange,
        exchanged: StepExchange,
        buffer: GradientBuffer,
        pieces: Sequence[Piece],
        *,
        completes_buffer: bool,
        end_of_step: Callable[[StepExchange], None] | None,
    ) -> None:
        self._exchange = exchange
        self._exchanged = exchanged
        self._buffer = buffer
        self._pieces = pieces
        self._completes_buffer = completes_buffer
        self._end_of_step = end_of_step
        self._unit: Unit | None = None

    @property
    def stages(self) -> Sequence[Callable[[], None]]:
        # Not an attribute: it would be a circle, and gradients would live until it is found.
        return self._push, self._answer, self._receive

    def __str__(self) -> str:
        return (
            f"step {self._exchanged.info.step}: {', '.join(piece.name for piece in self._pieces)}"
        )

    def finish(self) -> None:
        # Also after an error: backward would never return. It is raised at the end of backward.
        if self._completes_buffer:
            self._buffer.complete()

    def encode(self, pieces: Sequence[Piece]) -> None:
        """Compress some of its pieces, which are there, before it is pushed."""
        self._exchange.encode(self._opened(), pieces)

    def _opened(self) -> Unit:
        if self._unit is None:
            unit = self._buffer.unit(self._pieces, self._exchanged.info)
            self._exchange.open(unit)
            self._unit = unit
        return self._unit

    def _pushed(self) -> Unit:
        if self._unit is None:
            raise RuntimeError(f"{self}: it is awaited, but was not pushed")
        return self._unit

    def _push(self) -> None:
        self._exchange.push(self._opened())

    def _answer(self) -> None:
        self._exchange.answer(self._pushed())

    def _receive(self) -> None:
        finite = self._exchange.receive(self._pushed())
        if self._completes_buffer:
            finite = self._buffer.store() and finite
        if not finite:
            self._exchanged.finite = False
        if self._end_of_step is not None:
            self._end_of_step(self._exchanged)
