"""Both directions of a recipe in one process: all workers' gradients in, their mean out.

With the same Compressor, codecs and frames as on n machines: each worker compresses and packs
pushes; the server unpacks them, compresses their mean and packs updates; those are unpacked and
decoded. No network, no threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.gradient.flat import flatten
from thinwire.gradient.keys import Key
from thinwire.gradient.pieces import Piece, batches, cut, piece_numel_for
from thinwire.recipe import Recipe
from thinwire.settings import check_whole
from thinwire.wire import frame
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Message, Push, Update, encode
from thinwire.worker.sides import (
    Round,
    ServerSide,
    WorkerSide,
    decode_into,
    entries,
    norm_of,
    overflowed,
    read,
)
from thinwire.worker.state import States, by_parameter, by_piece, reassign

Gradients = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The mean as every worker decodes it, and the bytes of one step, frames and all.

    ``pushed_nbytes`` and ``pulled_nbytes`` are what one worker sends (on average) and receives.
    """

    mean: dict[str, Tensor]
    pushed_nbytes: float
    pulled_nbytes: int


class VirtualExchange:
    """Both directions of a recipe, for gradients that the caller has."""

    def __init__(
        self,
        recipe: Recipe,
        keys: Sequence[Key],
        *,
        workers: int,
        seed: int = 0,
        piece_numel: int | None = None,
    ) -> None:
        check_whole(workers, least=1, owner="VirtualExchange", field="workers")
        self.keys = tuple(keys)
        most_numel = piece_numel or piece_numel_for(self.keys, owners=workers)
        self.pieces = cut(self.keys, most_numel=most_numel)
        self._batches = batches(self.pieces)
        self.workers = [
            WorkerSide(recipe, rank=rank, workers=workers, seed=seed) for rank in range(workers)
        ]
        self.server = ServerSide(recipe, workers=workers, seed=seed)

    def average(
        self, gradients: Sequence[Gradients], *, step: int, learning_rate: float | None = None
    ) -> Exchanged:
        """The mean of one mapping of gradients per worker, each way as the recipe says.

        If one gradient of one worker is not finite, neither is the mean, and no state changes.
        """
        flat = [{key.name: flatten(own[key.name]) for key in self.keys} for own in gradients]
        rounds = [Round(step, learning_rate, norm_of(own.values())) for own in flat]
        mean = {key.name: torch.empty(key.numel) for key in self.keys}
        pushed = pulled = 0
        finite = True
        for batch in self._batches:
            pushes = [
                self._push(rank, flat[rank], batch, rounds[rank]) for rank in range(len(flat))
            ]
            update = self._answer(pushes, batch, rounds[0])
            answers = read(update, Update, numbers=range(len(batch)), pieces=batch)
            decode_into(mean, batch, answers)
            finite = finite and not overflowed(mean, batch, answers)
            pushed += sum(nbytes_of(push) for push in pushes)
            pulled += nbytes_of(update)
        if not finite:
            self._undo(step)
        shaped = {key.name: mean[key.name].view(key.shape) for key in self.keys}
        return Exchanged(shaped, pushed / len(gradients), pulled)

    def state_dict(self) -> dict[str, list[States] | States]:
        """All residuals by parameter: ``{"workers": [...], "server": ...}``."""
        return {
            "workers": [
                by_parameter(self.pieces, side.compressor.state_dict()) for side in self.workers
            ],
            "server": by_parameter(self.pieces, self.server.compressor.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, list[States] | States]) -> None:
        """Take over a copy, also one of another number of workers: the mean residual stays."""
        workers, server = state["workers"], state["server"]
        if not isinstance(workers, list) or isinstance(server, list):
            raise ConfigError("a cluster's state holds a list of workers and one server")
        if len(workers) != len(self.workers):
            workers = reassign(workers, workers=len(self.workers))
        for side, states in zip(self.workers, workers, strict=True):
            side.compressor.load_state_dict(by_piece(self.pieces, states))
        self.server.compressor.load_state_dict(by_piece(self.pieces, server))

    def _undo(self, step: int) -> None:
        self.server.compressor.undo_step(step)
        for worker in self.workers:
            worker.compressor.undo_step(step)

    def _push(self, rank: int, own: Gradients, batch: Sequence[Piece], round_: Round) -> Frame:
        encoded = self.workers[rank].push(batch, own, round_)
        rate = round_.learning_rate or 0.0
        message = Push(round_.step, rate, entries(range(len(batch)), encoded))
        return sent(message, worker=rank, step=round_.step)

    def _answer(self, pushes: Sequence[Frame], batch: Sequence[Piece], round_: Round) -> Frame:
        numbers = range(len(batch))
        received = [read(push, Push, numbers=numbers, pieces=batch) for push in pushes]
        answers = self.server.answer(batch, received, round_)
        message = Update(round_.step + 1, entries(numbers, answers))
        return sent(message, worker=frame.SERVER, step=round_.step)


def sent(message: Message, *, worker: int, step: int) -> Frame:
    """What a peer would read: packed into bytes and unpacked again."""
    header, body = frame.pack(encode(message, run=1, epoch=1, worker=worker, step=step))
    return frame.unpack(memoryview(header + bytes(body)))


def nbytes_of(sent: Frame) -> int:
    return frame.HEADER_NBYTES + len(sent.body)
