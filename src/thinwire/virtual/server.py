"""``VirtualServer``: the real rules of a parameter server, for workers of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.exchange.roles import decode_into, entries, finite_push, norm_of, read
from thinwire.gradient.pieces import Piece, batches, flatten
from thinwire.gradient.steps import StepInfo
from thinwire.recipe import Recipe
from thinwire.server.aggregate import Aggregate
from thinwire.server.settings import Rules
from thinwire.virtual.exchange import VirtualExchange, nbytes_of, sent
from thinwire.virtual.replica import Evaluation
from thinwire.wire.frame import SERVER, Frame
from thinwire.wire.messages import Push, Update


@dataclass(frozen=True, slots=True)
class Answer:
    """What a push led to. ``mean`` is the next update, if the push closed a version."""

    mean: dict[str, Tensor] | None
    refused: bool
    pushed_nbytes: int
    pulled_nbytes: int


class VirtualServer:
    """One server of all pieces, for the workers of ``exchange``."""

    def __init__(
        self, exchange: VirtualExchange, recipe: Recipe, rules: Rules, *, seed: int
    ) -> None:
        self._exchange = exchange
        numbers = iter(range(len(exchange.pieces)))
        self._batches = [{next(numbers): p for p in batch} for batch in batches(exchange.pieces)]
        self.aggregate = Aggregate(recipe, dict(enumerate(exchange.pieces)), rules, seed=seed)
        # What the server owes is kept once, and is in the exchange's state.
        exchange.server.compressor = self.aggregate.compressor
        self._steps = [0] * rules.workers

    def push(self, evaluation: Evaluation) -> Answer:
        """Compress and count a gradient. If it is too stale, its worker takes it back."""
        step = self._steps[evaluation.worker]
        self._steps[evaluation.worker] += 1
        frames = self._compressed(evaluation, step)
        pushed = sum(nbytes_of(frame) for frame in frames)
        pushes = [
            self._received(evaluation, *pair) for pair in zip(frames, self._batches, strict=True)
        ]
        # All pieces have the same version here, so all of a gradient are too old, or none.
        if self.aggregate.judge(evaluation.worker, step, pushes[0]).stale:
            self._take_back(evaluation.worker, pushes)
            return Answer(None, True, pushed, 0)
        updates = [
            sent(update, worker=SERVER, step=update.version - 1)
            for push in pushes
            for update in self.aggregate.count(evaluation.worker, step, push)
        ]
        mean = self._mean(updates) if updates else None
        return Answer(mean, False, pushed, sum(nbytes_of(frame) for frame in updates))

    def _compressed(self, evaluation: Evaluation, step: int) -> list[Frame]:
        flat = {key.name: flatten(evaluation.gradients[key.name]) for key in self._exchange.keys}
        info = StepInfo(step, evaluation.learning_rate, norm_of(flat.values()))
        role = self._exchange.workers[evaluation.worker]
        frames = []
        for batch in self._batches:
            encoded, _ = finite_push(role, list(batch.values()), flat, info)
            message = Push(
                evaluation.version, evaluation.learning_rate, entries(list(batch), encoded)
            )
            frames.append(sent(message, worker=evaluation.worker, step=step))
        return frames

    def _received(self, evaluation: Evaluation, frame: Frame, batch: Mapping[int, Piece]) -> Push:
        numbers, pieces = list(batch), list(batch.values())
        encoded = read(frame, Push, numbers=numbers, pieces=pieces)
        return Push(evaluation.version, evaluation.learning_rate, entries(numbers, encoded))

    def _take_back(self, worker: int, pushes: Sequence[Push]) -> None:
        compressor = self._exchange.workers[worker].compressor
        for entry in (entry for push in pushes for entry in push.entries):
            compressor.take_back(self._exchange.pieces[entry.piece], entry.encoded)

    def _mean(self, updates: Sequence[Frame]) -> dict[str, Tensor]:
        mean = {key.name: torch.empty(key.numel) for key in self._exchange.keys}
        for update, batch in zip(updates, self._batches, strict=True):
            pieces = list(batch.values())
            decode_into(mean, pieces, read(update, Update, numbers=list(batch), pieces=pieces))
        return {key.name: mean[key.name].view(key.shape) for key in self._exchange.keys}
