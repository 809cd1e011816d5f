"""Averaging by parameter servers, for the ranks of a process group.

Synchronous servers only: DDP gives its optimizer one update for every backward pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from thinwire.errors import ConfigError, Refused, RemoteProtocolError
from thinwire.gradient.pieces import Piece
from thinwire.recipe import Recipe
from thinwire.worker.exchange import Transit, Unit
from thinwire.worker.servers import Servers, finite_push
from thinwire.worker.sides import WorkerSide, decode_into
from thinwire.worker.spans import Span, unwatched
from thinwire.worker.state import ExchangeState, by_parameter, by_piece, reassign
from thinwire.worker.stats import Tally

_logger = logging.getLogger(__name__)

Join = Callable[[int], Servers]
"""Joins the servers, with weights of a version."""


class Served:
    """Pushes to the servers that own the pieces; their answers are the mean."""

    def __init__(
        self,
        recipe: Recipe,
        pieces: Sequence[Piece],
        join: Join,
        *,
        rank: int,
        workers: int,
        seed: int,
        deadline_seconds: float,
    ) -> None:
        """``join`` is called at the first push, because a checkpoint may be loaded before."""
        self._pieces, self._join = pieces, join
        self._numbers = {piece: number for number, piece in enumerate(pieces)}
        self._rank, self._workers = rank, workers
        self._deadline = deadline_seconds
        self._servers: Servers | None = None
        self._step = self._first_step = 0
        self._first_version = 0
        self._pushed: set[int] = set()
        self.span: Span = unwatched
        self.tally = Tally()
        self.worker = WorkerSide(recipe, rank=rank, workers=workers, seed=seed)
        self.worker.compressor.prepare(pieces)

    def open(self, unit: Unit) -> Transit:
        return Transit(unit)

    def encode(self, transit: Transit, pieces: Sequence[Piece]) -> None:
        """Not before servers know that there is something to send."""

    def push(self, transit: Transit) -> None:
        unit = transit.unit
        servers = self._begin(unit.round.step)
        version, rate = self._version(unit.round.step), unit.round.learning_rate or 0.0
        numbers = [self._numbers[piece] for piece in unit.pieces]
        self._pushed.update(numbers)
        for owned in servers.by_owner(numbers):
            pieces = [self._pieces[number] for number in owned]
            sent, left_out = finite_push(self.worker, pieces, unit.flat, unit.round)
            if left_out:
                _logger.warning("%s: %d pieces with an inf or a nan left out", unit.what, left_out)
            self.tally.push(pieces, sent)
            servers.push(version, version, rate, owned, sent)

    def answer(self, transit: Transit) -> None:
        """The servers do."""

    def receive(self, transit: Transit) -> bool:
        unit, servers = transit.unit, self._servers
        if servers is None:
            raise ConfigError("an update is awaited before anything was pushed")
        version, step = self._version(unit.round.step) + 1, unit.round.step
        numbers = [self._numbers[piece] for piece in unit.pieces]
        with self.span("wait for servers", unit.what):
            servers.arrivals.wait_for(version, numbers, step=step, deadline_seconds=self._deadline)
        if servers.arrivals.refused_pieces:
            raise RemoteProtocolError(f"{unit.what}: refused, though servers are synchronous")
        update = servers.arrivals.take(version, numbers)
        decode_into(unit.flat, unit.pieces, update)
        self.tally.pull(unit.pieces, update)
        return True

    def undo(self, step: int) -> None:
        """Servers have counted the step already."""
        raise ConfigError(
            f"step {step}: the mean does not fit into float16, and servers cannot take back a "
            "step: use bfloat16, or another exchange"
        )

    @property
    def sent_nbytes(self) -> int:
        return sum(desk.sent_nbytes for desk in self._servers.desks) if self._servers else 0

    @property
    def received_nbytes(self) -> int:
        return sum(desk.received_nbytes for desk in self._servers.desks) if self._servers else 0

    def leave(self, text: str, *, step: int) -> None:
        """Tell the servers why this rank stops: they wait a while for it to come back."""
        if self._servers is not None:
            self._servers.abandon(f"step {step}: {text}")

    def close(self) -> None:
        """Tell the servers that this rank is done."""
        if self._servers is not None:
            self._servers.close()

    def state_dict(self) -> ExchangeState:
        states = by_parameter(self._pieces, self.worker.compressor.state_dict())
        applied = self._first_version
        if self._servers is not None:
            applied = self._version(self._step) + 1
        return {"push": states, "servers": {"version": {"applied": torch.tensor(applied)}}}

    def load_state_dict(self, state: ExchangeState) -> None:
        if self._servers is not None:
            raise ConfigError("exchange='servers': load a checkpoint before the first step")
        self.worker.compressor.load_state_dict(by_piece(self._pieces, state.get("push", {})))
        self.worker.compressor.prepare(self._pieces)
        if "servers" in state:
            self._first_version = int(state["servers"]["version"]["applied"])

    def load_state_dicts(self, states: Sequence[ExchangeState]) -> None:
        states = [state for state in states if state]
        pushes = reassign([state.get("push", {}) for state in states], workers=self._workers)
        self.load_state_dict({"push": pushes[self._rank]})

    def _version(self, step: int) -> int:
        """The version that the gradients of a step are computed on."""
        return self._first_version + step - self._first_step

    def _begin(self, step: int) -> Servers:
        if self._servers is None:
            self._servers = self._joined()
            self._check_version(self._servers)
            self._step = self._first_step = step
        elif step != self._step:
            self._check_complete()
            self._step = step
            self._pushed.clear()
            self._servers.arrivals.applied_all(self._version(step))
        return self._servers

    def _joined(self) -> Servers:
        try:
            return self._join(self._first_version)
        except Refused:
            if self._first_version == 0:
                raise
            servers = self._join(0)
            if servers.version > 0:
                servers.abandon("this training is not of the servers' version")
                raise
            _logger.warning("the servers are new: what they owed for earlier steps is lost")
            self._first_version = 0
            return servers

    def _check_version(self, servers: Servers) -> None:
        if servers.version != self._first_version:
            raise ConfigError(
                f"the servers are at version {servers.version}, this training is at "
                f"{self._first_version}: start them with empty logs, or bring the checkpoint to "
                "their version with tw.replay"
            )

    def _check_complete(self) -> None:
        missing = set(self._numbers.values()) - self._pushed
        if missing:
            names = sorted({self._pieces[number].key.name for number in missing})
            raise ConfigError(
                f"step {self._step}: no gradient of {', '.join(names[:3])}: servers wait for all "
                "of them in every step, so freeze parameters before compress_ddp, or use another "
                "exchange"
            )
