"""``ServersExchange``: parameter servers average, for the ranks of a process group.

Synchronous servers only: DDP gives its optimizer one update for every backward pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from thinwire.client.servers import Servers
from thinwire.errors import ConfigError, Refused, RemoteProtocolError
from thinwire.exchange.base import Unit
from thinwire.exchange.resharding import ExchangeState, by_parameter, by_piece, reassign
from thinwire.exchange.roles import WorkerRole, decode_into, finite_push
from thinwire.gradient.pieces import Piece
from thinwire.recipe import Recipe
from thinwire.watch.stats import Tally
from thinwire.watch.trace import Span, unwatched

_logger = logging.getLogger(__name__)

Join = Callable[[int], Servers]
"""Joins the servers, with weights of a version."""


class ServersExchange:
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
        self._shares_momentum = recipe.shares_momentum
        self._deadline = deadline_seconds
        self._servers: Servers | None = None
        self._step = self._first_step = 0
        self._first_version = 0
        self._pushed: set[int] = set()
        self.span: Span = unwatched
        self.tally = Tally()
        self.worker = WorkerRole(recipe, rank=rank, workers=workers, seed=seed)
        self.worker.compressor.prepare(pieces)

    def open(self, unit: Unit) -> None:
        """Payloads are on the heap."""

    def encode(self, unit: Unit, pieces: Sequence[Piece]) -> None:
        """Do nothing: ``push`` encodes, once the servers are joined."""

    def push(self, unit: Unit) -> None:
        servers = self._begin(unit.info.step)
        version, rate = self._version(unit.info.step), unit.info.learning_rate or 0.0
        numbers = [self._numbers[piece] for piece in unit.pieces]
        self._pushed.update(numbers)
        for owned in servers.by_owner(numbers):
            pieces = [self._pieces[number] for number in owned]
            sent, left_out = finite_push(self.worker, pieces, unit.flat, unit.info)
            if left_out:
                _logger.warning("%s: %d pieces with an inf or a nan left out", unit.what, left_out)
            self.tally.push(pieces, sent)
            servers.push(version, version, rate, owned, sent)

    def answer(self, unit: Unit) -> None:
        """Do nothing: servers answer."""

    def receive(self, unit: Unit) -> bool:
        servers = self._servers
        if servers is None:
            raise ConfigError("an update is awaited before anything was pushed")
        version, step = self._version(unit.info.step) + 1, unit.info.step
        numbers = [self._numbers[piece] for piece in unit.pieces]
        with self.span("wait for servers", unit.what):
            servers.updates.wait_for(version, numbers, step=step, deadline_seconds=self._deadline)
        if servers.updates.refused_pieces:
            raise RemoteProtocolError(f"{unit.what}: refused, though servers are synchronous")
        update = servers.updates.take(version, numbers)
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
        return 0 if self._servers is None else self._servers.sent_nbytes

    @property
    def received_nbytes(self) -> int:
        return 0 if self._servers is None else self._servers.received_nbytes

    def leave(self, text: str, *, step: int) -> None:
        """Tell the servers why this rank stops: for a while they expect it to come back."""
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
            self._check_step(step)
            self._step = self._first_step = step
        elif step != self._step:
            self._check_complete()
            self._step = step
            self._pushed.clear()
            self._servers.updates.applied_all(self._version(step))
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
                "their version with tw.replay_log"
            )

    def _check_step(self, step: int) -> None:
        if self._shares_momentum and step != self._first_version:
            raise ConfigError(
                f"the servers are at version {self._first_version}, this training is at step "
                f"{step}, but with a recipe that shares the optimizer's momentum both must be the "
                "same: start the servers on their log, or without a checkpoint"
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
