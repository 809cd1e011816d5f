"""``RankHandle``: one rank's end of an exchange: state for checkpoints, statistics, errors."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import torch.distributed as dist

from thinwire.errors import ConfigError, WorkerLost
from thinwire.exchange.base import GradientBuffer, StepExchange, UnitJob
from thinwire.exchange.pipeline import Runner
from thinwire.gradient.pieces import Piece
from thinwire.gradient.steps import StepInfo
from thinwire.hooks.fsdp.parts import Shards, place_in
from thinwire.hooks.rank_state import CompressionState, RankState, checked_states
from thinwire.hooks.rendezvous import Membership
from thinwire.recipe import Recipe
from thinwire.recipe_names import typed_recipe
from thinwire.watch.stats import Stats, residual_ratios
from thinwire.watch.trace import Span, unwatched

if TYPE_CHECKING:
    from typing_extensions import Self

    from thinwire.hooks.fsdp.watch import ShardWatch

STAGES = ("encode", "serve", "decode")
"""What the three stages of a unit are called."""


def _call(tell: Callable[[], Callable[[BaseException], None] | None], error: BaseException) -> None:
    method = tell()
    if method is not None:
        method(error)


class RankHandle(ABC):
    """What all handles of ranks have in common, whatever is exchanged and when."""

    def __init__(
        self, membership: Membership, runner: Runner, *, recipe: Recipe, deadline_seconds: float
    ) -> None:
        """``runner`` does the ``STAGES`` of units."""
        self._pieces: dict[str, list[Piece]] = {}
        for piece in membership.pieces:
            self._pieces.setdefault(piece.key.name, []).append(piece)
        self._order = {piece: number for number, piece in enumerate(membership.pieces)}
        self._exchange, self._endpoints = membership.exchange, membership.endpoints
        self._rank, self._workers = membership.rank, membership.size
        self._layout = membership.layout
        self._own_key = f"rank {membership.rank} of {membership.size}"
        self.recipe = recipe
        self._deadline = deadline_seconds
        self._shards: Shards | None = None
        self._watch: ShardWatch | None = None
        self._runner = runner
        weakref.finalize(self, runner.close)
        self._current = StepExchange(StepInfo(0))
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
        if self._shards is not None:
            state["shard"] = {"index": self._shards.index, "count": self._shards.count}
        return {self._own_key: state}

    def load_state_dict(self, state: CompressionState) -> None:
        """Continue where this rank's ``state_dict`` was made."""
        every = self.checked([state])
        if self._own_key not in every:
            raise ConfigError(
                f"this is the state of {', '.join(every)}, but here is {self._own_key}: give "
                "load_state_dicts the states of all ranks"
            )
        if not self.fits(every):
            raise ConfigError(
                "this state was made with another exchange, hierarchy or set of trained "
                "parameters: give load_state_dicts the states of all ranks"
            )
        rank_state = every[self._own_key]
        # torch.distributed.checkpoint leaves out what is empty.
        self._exchange.load_state_dict(rank_state.get("exchange", {}))
        self.steps = rank_state["steps"]

    def hold(self, shards: Shards, watch: ShardWatch) -> None:
        """Say which part of a replica's parameters this rank has, if not all, and who watches the
        ranks with the others."""
        self._shards, self._watch = shards, watch
        watch.on_error = self._teller()
        self._own_key += f", part {shards.index} of {shards.count}"

    def fits(self, state: CompressionState) -> bool:
        """Whether ``load_state_dict`` can take it: of this rank, and made in the same layout."""
        every = self.checked([state])
        return self._own_key in every and every[self._own_key]["layout"] == self._layout

    def load_state_dicts(self, states: Iterable[CompressionState]) -> None:
        """Continue from the states of all ranks of a run, whatever their number was.

        If it differs, what they owe is shared out anew, so that its mean stays the same.
        """
        every = self._of_own_part(self.checked(states))
        ordered = sorted(every.values(), key=lambda state: state["rank"])
        if not ordered:
            raise ConfigError("no states were given: those of all ranks of one run go here")
        if any(state["workers"] != len(ordered) for state in ordered):
            raise ConfigError(
                f"states of {', '.join(every)}: those of all ranks of one run go here"
            )
        if all(state["layout"] == self._layout for state in ordered):
            self.load_state_dict(every)
            return
        self._exchange.load_state_dicts([state.get("exchange", {}) for state in ordered])
        self.steps = ordered[0]["steps"]

    def checked(self, states: object) -> CompressionState:
        """Merge a list of states into one mapping; refuses what ``state_dict`` did not make."""
        return checked_states(states, self._sizes)

    def _of_own_part(self, states: CompressionState) -> CompressionState:
        """Of each replica the part that this rank holds."""
        if self._shards is None:
            return states
        here = self._shards.index, self._shards.count
        own = {key: state for key, state in states.items() if place_in(key, state) == here}
        if own or not states:
            return own
        return {f"replica {state['rank']}": state for state in self._shards.recut(states)}

    def _sizes(self, key: str, state: RankState) -> Mapping[str, int]:
        """The numbers of elements that a rank with this state has, by parameter."""
        if self._shards is not None:
            return self._shards.numels(*place_in(key, state))
        return {name: cut[0].key.numel for name, cut in self._pieces.items()}

    def load_distributed(
        self, checkpoint_id: str | os.PathLike[str], *, key: str = "compression"
    ) -> None:
        """Continue from what ``torch.distributed.checkpoint.save({key: compression}, ...)`` saved.

        For any number of ranks; all must call it.
        """
        # It brings much of torch along: to import thinwire would take twice as long.
        from thinwire.hooks.checkpoint import read_states

        self.load_state_dicts([read_states(checkpoint_id, key=key)])

    def stats(self) -> Stats:
        """What happened so far, on this rank. Call it between steps."""
        tally, worker = self._exchange.tally, self._exchange.worker
        pieces = [piece for cut in self._pieces.values() for piece in cut]
        ratios, ratio = ({}, None) if worker is None else residual_ratios(worker.compressor, pieces)
        runner, endpoints = self._runner, self._endpoints
        return Stats(
            recipe=typed_recipe(self.recipe),
            steps=self.steps,
            overflowed_steps=self.overflowed_steps,
            dense_nbytes=sum(tally.dense.values()),
            pushed_nbytes=sum(tally.pushed.values()),
            pulled_nbytes=sum(tally.pulled.values()),
            sent_nbytes=sum(endpoint.sent_nbytes for endpoint in endpoints),
            received_nbytes=sum(endpoint.received_nbytes for endpoint in endpoints),
            encode_seconds=runner.work_seconds["encode"],
            serve_seconds=runner.work_seconds["serve"],
            decode_seconds=runner.work_seconds["decode"],
            exchange_seconds=runner.active_seconds,
            exposed_seconds=runner.exposed_seconds,
            residual_ratio=ratio,
            tensors=tally.tensors(ratios),
            forgotten_ratio=None if worker is None else worker.compressor.forgotten_ratio,
        )

    def wait(self) -> None:
        """Wait until all gradients are exchanged; raise what went wrong. Backward calls it, too."""
        # A unit waits at most once or twice in each of the three stages; only a bug waits longer.
        self._runner.drain(deadline_seconds=12 * self._deadline, what=f"step {self.steps}")

    def watch(self, span: Span | None) -> None:
        """Do every stage, and every wait, within ``span(name, about)``; with None, no more.

        ``tw.trace`` makes a timeline of it.
        """
        self._runner.span = span or unwatched
        for endpoint in self._endpoints:
            endpoint.span = span or unwatched

    def check(self) -> None:
        """Raise what went wrong in an earlier step, if anything did."""
        self._runner.check()

    def close(self) -> None:
        """Stop: nothing can be exchanged after that. Does not wait for other ranks."""
        self._closed = True
        self._runner.close()
        if self._watch is not None:
            self._watch.close()
        for endpoint in self._endpoints:
            endpoint.close()

    def __enter__(self) -> Self:
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

    def _teller(self) -> Callable[[BaseException], None]:
        """For a pipeline, whose threads must not keep this object, and all its memory, alive."""
        return partial(_call, weakref.WeakMethod(self._tell))

    def _tell(self, error: BaseException) -> None:
        """Tell all peers why this rank stops: else they would wait for it, and blame it."""
        text = self._reason(error)
        if self._watch is not None:
            self._watch.leave(text)
        for endpoint in self._endpoints:
            endpoint.leave(text, step=self._current.info.step)

    def _reason(self, error: BaseException) -> str:
        """Why this rank stops, in a sentence for others."""
        if isinstance(error, WorkerLost):
            return str(error)
        step, kind = self._current.info.step, type(error).__name__
        return f"rank {dist.get_rank()} stopped at step {step}: {kind}: {error}"

    @abstractmethod
    def _end_step(self, step: StepExchange) -> None:
        """Called when all units of a step are back, by the thread that took the last one."""

    def _check_usable(self) -> None:
        if self._closed:
            raise ConfigError("this model's compression is closed: it cannot be trained any more")
        self._runner.check()

    def _job(
        self, buffer: GradientBuffer, pieces: Iterable[Piece], *, completes_buffer: bool, last: bool
    ) -> UnitJob:
        """The exchange of some pieces of a buffer. ``last``: it ends the step."""
        return UnitJob(
            self._exchange,
            self._current,
            buffer,
            sorted(pieces, key=self._order.__getitem__),
            completes_buffer=completes_buffer,
            end_of_step=self._end_step if last else None,
        )
