"""The rules of a parameter server, the real ones, for workers of one process. No network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.encoded import Encoded
from thinwire.gradient.flat import flatten
from thinwire.gradient.pieces import Piece, batches
from thinwire.recipe import Recipe
from thinwire.server.aggregate import Aggregate
from thinwire.server.rules import Rules
from thinwire.wire.frame import SERVER, Frame
from thinwire.wire.messages import Push, Update
from thinwire.worker.servers import finite_push
from thinwire.worker.sides import Round, decode_into, entries, norm_of, read
from thinwire.worker.virtual_exchange import VirtualExchange, nbytes_of, sent
from thinwire.worker.virtual_replica import Evaluation


@dataclass(frozen=True, slots=True)
class Answer:
    """What a push led to: ``mean`` is the next update, if it closed a version."""

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

    def push(self, one: Evaluation) -> Answer:
        """Compress and count a gradient. If it is too old, it goes back to its worker."""
        step = self._steps[one.worker]
        self._steps[one.worker] += 1
        frames = self._compressed(one, step)
        pushed = sum(nbytes_of(frame) for frame in frames)
        pushes = [self._heard(one, *pair) for pair in zip(frames, self._batches, strict=True)]
        # All pieces have the same version here, so all of a gradient are too old, or none.
        if self.aggregate.judge(one.worker, step, pushes[0]).stale:
            self._take_back(one.worker, pushes)
            return Answer(None, True, pushed, 0)
        updates = [
            sent(update, worker=SERVER, step=update.version - 1)
            for push in pushes
            for update in self.aggregate.count(one.worker, step, push)
        ]
        mean = self._mean(updates) if updates else None
        return Answer(mean, False, pushed, sum(nbytes_of(frame) for frame in updates))

    def _compressed(self, one: Evaluation, step: int) -> list[Frame]:
        flat = {key.name: flatten(one.gradients[key.name]) for key in self._exchange.keys}
        round_ = Round(step, one.learning_rate, norm_of(flat.values()))
        side = self._exchange.workers[one.worker]
        found = []
        for batch in self._batches:
            encoded, _ = finite_push(side, list(batch.values()), flat, round_)
            message = Push(one.version, one.learning_rate, entries(list(batch), encoded))
            found.append(sent(message, worker=one.worker, step=step))
        return found

    def _heard(self, one: Evaluation, frame: Frame, batch: Mapping[int, Piece]) -> Push:
        numbers, pieces = list(batch), list(batch.values())
        encoded = read(frame, Push, numbers=numbers, pieces=pieces)
        return Push(one.version, one.learning_rate, entries(numbers, encoded))

    def _take_back(self, worker: int, pushes: Sequence[Push]) -> None:
        compressor = self._exchange.workers[worker].compressor
        for entry in (entry for push in pushes for entry in push.entries):
            encoded = Encoded(entry.codec, entry.numel, entry.payload)
            compressor.take_back(self._exchange.pieces[entry.piece], encoded)

    def _mean(self, updates: Sequence[Frame]) -> dict[str, Tensor]:
        mean = {key.name: torch.empty(key.numel) for key in self._exchange.keys}
        for update, batch in zip(updates, self._batches, strict=True):
            pieces = list(batch.values())
            decode_into(mean, pieces, read(update, Update, numbers=list(batch), pieces=pieces))
        return {key.name: mean[key.name].view(key.shape) for key in self._exchange.keys}
