"""One unit of a step on its way through the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from thinwire.gradient.pieces import Piece
from thinwire.worker.exchange import Exchange, Transit, Unit
from thinwire.worker.sides import Round


@dataclass(slots=True)
class Step:
    """One backward pass: what its units have in common."""

    number: int
    learning_rate: float | None
    norm: float | None = None
    finite: bool = True

    def round(self) -> Round:
        return Round(self.number, self.learning_rate, self.norm)


class Home(Protocol):
    """Where the gradients of one or more units are, and where their mean goes."""

    def unit(self, pieces: Sequence[Piece], round_: Round) -> Unit:
        """These pieces, once they are here."""

    def store(self) -> bool:
        """All means are here: bring them where they belong. Whether its number format can hold
        them."""

    def complete(self) -> None:
        """Let whoever waits for this home go on, also after an error."""


class UnitJob:
    """The stages of one unit. The last of a home completes it; the last of a step ends that."""

    def __init__(
        self,
        exchange: Exchange,
        step: Step,
        home: Home,
        pieces: Sequence[Piece],
        *,
        completes_home: bool,
        end_of_step: Callable[[Step], None] | None,
    ) -> None:
        self._exchange = exchange
        self._step = step
        self._home = home
        self._pieces = pieces
        self._completes_home = completes_home
        self._end_of_step = end_of_step
        self._transit: Transit | None = None

    @property
    def stages(self) -> Sequence[Callable[[], None]]:
        # Not an attribute: it would be a circle, and gradients would live until it is found.
        return self._push, self._answer, self._receive

    def __str__(self) -> str:
        return f"step {self._step.number}: {', '.join(piece.name for piece in self._pieces)}"

    def finish(self) -> None:
        # Also after an error: backward would never return. It is raised at the end of backward.
        if self._completes_home:
            self._home.complete()

    def encode(self, pieces: Sequence[Piece]) -> None:
        """Compress some of its pieces, which are there, before it is pushed."""
        self._exchange.encode(self._opened(), pieces)

    def _opened(self) -> Transit:
        if self._transit is None:
            unit = self._home.unit(self._pieces, self._step.round())
            self._transit = self._exchange.open(unit)
        return self._transit

    def _pushed(self) -> Transit:
        if self._transit is None:
            raise RuntimeError(f"{self}: it is awaited, but was not pushed")
        return self._transit

    def _push(self) -> None:
        self._exchange.push(self._opened())

    def _answer(self) -> None:
        self._exchange.answer(self._pushed())

    def _receive(self) -> None:
        finite = self._exchange.receive(self._pushed())
        if self._completes_home:
            finite = self._home.store() and finite
        if not finite:
            self._step.finite = False
        if self._end_of_step is not None:
            self._end_of_step(self._step)
