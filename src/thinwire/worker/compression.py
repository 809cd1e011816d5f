"""The handle of a compressed model: its state, its statistics, and what all its steps share."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TypedDict

import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError, WorkerLost
from thinwire.gradient.pieces import Piece
from thinwire.worker.inline import Inline
from thinwire.worker.pipeline import Pipeline
from thinwire.worker.served import Served
from thinwire.worker.spans import Span, unwatched
from thinwire.worker.state import ExchangeState
from thinwire.worker.stats import Stats, residual_ratios
from thinwire.worker.team import Team
from thinwire.worker.unit_job import Home, Step, UnitJob

STAGES = ("encode", "serve", "decode")
"""What the three stages of a unit are called."""


def _call(tell: Callable[[], Callable[[BaseException], None] | None], error: BaseException) -> None:
    method = tell()
    if method is not None:
        method(error)


class RankState(TypedDict):
    """One rank's state, in plain tensors and numbers."""

    steps: int
    rank: int
    workers: int
    layout: str
    exchange: ExchangeState


CompressionState = dict[str, RankState]
"""By rank: ``{"rank 0 of 4": ...}``. Ranks differ, and none must be taken for another."""


class Compression(ABC):
    """What ``compress_ddp`` and ``compress_module`` return: state for checkpoints, statistics, and
    a way to stop."""

    def __init__(
        self,
        team: Team,
        pipeline: Pipeline | Inline,
        *,
        optimizer: Optimizer | None,
        deadline_seconds: float,
    ) -> None:
        """``pipeline`` does the ``STAGES`` of units. Use ``compress_ddp`` or ``compress_module``
        instead."""
        self._pieces: dict[str, list[Piece]] = {}
        for piece in team.pieces:
            self._pieces.setdefault(piece.key.name, []).append(piece)
        self._order = {piece: number for number, piece in enumerate(team.pieces)}
        self._exchange, self._links = team.exchange, team.links
        self._rank, self._workers = team.rank, team.size
        self._layout = team.layout
        self._own_key = f"rank {team.rank} of {team.size}"
        self._optimizer = optimizer
        self._deadline = deadline_seconds
        self._pipeline = pipeline
        weakref.finalize(self, pipeline.close)
        self._step = Step(0, None)
        self._closed = False
        self.steps = 0
        self.overflowed_steps = 0

    def state_dict(self) -> CompressionState:
        """This rank's state: save one per rank, or all with ``torch.distributed.checkpoint``."""
        state: RankState = {
            "steps": self.steps,
            "rank": self._rank,
            "workers": self._workers,
            "layout": self._layout,
            "exchange": self._exchange.state_dict(),
        }
        return {self._own_key: state}

    def load_state_dict(self, state: CompressionState) -> None:
        """Continue where this rank's ``state_dict`` was made."""
        if self._own_key not in state:
            raise ConfigError(
                f"this is the state of {', '.join(state)}, but here is {self._own_key}: give "
                "load_state_dicts the states of all ranks"
            )
        own = state[self._own_key]
        if not self.fits(state):
            raise ConfigError(
                "this state was made with another exchange, hierarchy or set of trained "
                "parameters: give load_state_dicts the states of all ranks"
            )
        self._exchange.load_state_dict(own.get("exchange", {}))
        self.steps = own["steps"]

    def fits(self, state: CompressionState) -> bool:
        """Whether ``load_state_dict`` can take it: of this rank, and made in the same layout."""
        return self._own_key in state and state[self._own_key]["layout"] == self._layout

    def load_state_dicts(self, states: Iterable[CompressionState]) -> None:
        """Continue from the states of all ranks of a run, whatever their number was.

        If it differs, what they owe is shared out anew, so that its mean stays the same.
        """
        every = {key: state for one in states for key, state in one.items()}
        ordered = sorted(every.values(), key=lambda state: state["rank"])
        ranks = [state["rank"] for state in ordered]
        if not ordered:
            raise ConfigError("no states were given: those of all ranks of one run go here")
        if any(state["workers"] != len(ranks) for state in ordered):
            raise ConfigError(
                f"states of {', '.join(every)}: those of all ranks of one run go here"
            )
        if all(state["layout"] == self._layout for state in ordered):
            self.load_state_dict(every)
            return
        # torch.distributed.checkpoint leaves out what is empty.
        self._exchange.load_state_dicts([state.get("exchange", {}) for state in ordered])
        self.steps = ordered[0]["steps"]

    def load_distributed(
        self, checkpoint_id: str | os.PathLike[str], *, key: str = "compression"
    ) -> None:
        """Continue from what ``torch.distributed.checkpoint.save({key: compression}, ...)`` saved.

        For any number of ranks; all must call it.
        """
        # It brings much of torch along: whoever imports thinwire would wait twice as long.
        from thinwire.worker.checkpoint import read_states

        self.load_state_dicts([read_states(checkpoint_id, key=key)])

    def stats(self) -> Stats:
        """What happened so far, on this rank. Call it between steps."""
        tally, worker = self._exchange.tally, self._exchange.worker
        pieces = [piece for cut in self._pieces.values() for piece in cut]
        ratios, ratio = ({}, None) if worker is None else residual_ratios(worker.compressor, pieces)
        pipeline, links = self._pipeline, self._links
        return Stats(
            steps=self.steps,
            overflowed_steps=self.overflowed_steps,
            dense_nbytes=sum(tally.dense.values()),
            pushed_nbytes=sum(tally.pushed.values()),
            pulled_nbytes=sum(tally.pulled.values()),
            sent_nbytes=sum(link.sent_nbytes for link in links),
            received_nbytes=sum(link.received_nbytes for link in links),
            encode_seconds=pipeline.work_seconds["encode"],
            serve_seconds=pipeline.work_seconds["serve"],
            decode_seconds=pipeline.work_seconds["decode"],
            exchange_seconds=pipeline.active_seconds,
            exposed_seconds=pipeline.exposed_seconds,
            residual_ratio=ratio,
            tensors=tally.tensors(ratios),
        )

    def wait(self) -> None:
        """Wait until all gradients are exchanged; raise what went wrong. Backward does it, too."""
        # A unit waits at most once or twice in each of the three stages; only a bug waits longer.
        self._pipeline.drain(deadline_seconds=12 * self._deadline, what=f"step {self.steps}")

    def watch(self, span: Span | None) -> None:
        """Do every stage, and every wait, within ``span(name, about)``; with None, no more.

        ``tw.trace`` makes a timeline of it.
        """
        for one in (self._pipeline, *self._links):
            one.span = span or unwatched

    @abstractmethod
    def _end_of_backward(self) -> None:
        """Called once at the end of each backward, by the thread that has called it."""

    def check(self) -> None:
        """Raise what went wrong in an earlier step, if anything did."""
        self._pipeline.check()

    def close(self) -> None:
        """Stop. The model cannot be trained after that. Does not wait for other ranks."""
        self._closed = True
        self._pipeline.close()
        for way in self._links:
            if isinstance(way, Served):
                way.close()

    def __enter__(self) -> Compression:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._tell(error)
        self.close()

    def _begin_step(self) -> None:
        """RuntimeError if this is not in backward."""
        rate = None if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])
        self._step = Step(self.steps, rate)
        torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)

    def _check_usable(self) -> None:
        if self._closed:
            raise ConfigError("this model's compression is closed: it cannot be trained any more")
        self._pipeline.check()

    def _job(
        self, home: Home, pieces: Iterable[Piece], *, completes_home: bool, last: bool
    ) -> UnitJob:
        """The exchange of some pieces of a home. ``last``: it ends the step."""
        return UnitJob(
            self._exchange,
            self._step,
            home,
            sorted(pieces, key=self._order.__getitem__),
            completes_home=completes_home,
            end_of_step=self._end_step if last else None,
        )

    def _teller(self) -> Callable[[BaseException], None]:
        """For a pipeline, whose threads must not keep this object, and all its memory, alive."""
        return partial(_call, weakref.WeakMethod(self._tell))

    def _tell(self, error: BaseException) -> None:
        """Say to all why this rank stops: else they would wait for it, and blame it."""
        text = str(error)
        if not isinstance(error, WorkerLost):
            kind = type(error).__name__
            text = f"rank {dist.get_rank()} stopped at step {self._step.number}: {kind}: {error}"
        for link in self._links:
            link.leave(text, step=self._step.number)

    def _end_step(self, step: Step) -> None:
        if not step.finite:
            self._exchange.undo(step.number)
            self.overflowed_steps += 1
        self.steps += 1
