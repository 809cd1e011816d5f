"""``VirtualExchange``: both directions of a recipe in one process, gradients in, their mean out.

With the same Compressor, codecs and frames as on n machines: each worker compresses and packs
pushes; the server unpacks them, compresses their mean and packs updates; those are unpacked and
decoded. No network, no threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.checks import check_whole
from thinwire.errors import ConfigError
from thinwire.exchange.resharding import States, by_parameter, by_piece, reassign
from thinwire.exchange.roles import (
    ServerRole,
    WorkerRole,
    decode_into,
    entries,
    norm_of,
    overflowed,
    read,
)
from thinwire.gradient.pieces import Key, Piece, batches, cut, flatten, piece_numel_for
from thinwire.gradient.steps import StepInfo
from thinwire.recipe import Recipe
from thinwire.wire import frame
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Message, Push, Update, encode

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
            WorkerRole(recipe, rank=rank, workers=workers, seed=seed, undo=True)
            for rank in range(workers)
        ]
        self.server = ServerRole(recipe, workers=workers, seed=seed, undo=True)

    def average(
        self, gradients: Sequence[Gradients], *, step: int, learning_rate: float | None = None
    ) -> Exchanged:
        """The mean of one mapping of gradients per worker, each way as the recipe says.

        If one gradient of one worker is not finite, neither is the mean, and no state changes.
        """
        flat = [{key.name: flatten(own[key.name]) for key in self.keys} for own in gradients]
        infos = [StepInfo(step, learning_rate, norm_of(own.values())) for own in flat]
        mean = {key.name: torch.empty(key.numel) for key in self.keys}
        pushed = pulled = 0
        finite = True
        for batch in self._batches:
            pushes = [self._push(rank, flat[rank], batch, infos[rank]) for rank in range(len(flat))]
            update = self._answer(pushes, batch, infos[0])
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
                by_parameter(self.pieces, role.compressor.state_dict()) for role in self.workers
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
        for role, states in zip(self.workers, workers, strict=True):
            role.compressor.load_state_dict(by_piece(self.pieces, states))
        self.server.compressor.load_state_dict(by_piece(self.pieces, server))

    def _undo(self, step: int) -> None:
        self.server.compressor.undo_step(step)
        for worker in self.workers:
            worker.compressor.undo_step(step)

    def _push(
        self, rank: int, gradients: Gradients, batch: Sequence[Piece], info: StepInfo
    ) -> Frame:
        encoded = self.workers[rank].push(batch, gradients, info)
        rate = info.learning_rate or 0.0
        message = Push(info.step, rate, entries(range(len(batch)), encoded))
        return sent(message, worker=rank, step=info.step)

    def _answer(self, pushes: Sequence[Frame], batch: Sequence[Piece], info: StepInfo) -> Frame:
        numbers = range(len(batch))
        received = [read(push, Push, numbers=numbers, pieces=batch) for push in pushes]
        answers = self.server.answer(batch, received, info)
        message = Update(info.step + 1, entries(numbers, answers))
        return sent(message, worker=frame.SERVER, step=info.step)


def sent(message: Message, *, worker: int, step: int) -> Frame:
    """What a peer would read: packed into bytes and unpacked again."""
    header, body = frame.pack(encode(message, run=1, epoch=1, worker=worker, step=step))
    return frame.unpack(memoryview(header + bytes(body)))


def nbytes_of(sent: Frame) -> int:
    return frame.HEADER_NBYTES + len(sent.body)
