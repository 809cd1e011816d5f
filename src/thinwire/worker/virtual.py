"""n workers and the server side, one after the other in this process. No network, no threads.

Exactly what n machines would compute, with the same Compressor, codecs and frames: each worker
compresses and packs pushes; the server unpacks them, compresses their mean and packs updates; those
are unpacked and decoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from thinwire import _native
from thinwire.compressor import flatten
from thinwire.errors import ConfigError
from thinwire.gradient.keys import Key
from thinwire.gradient.pieces import Piece, batches, cut, piece_numel_for
from thinwire.recipe import Recipe
from thinwire.settings import check_whole
from thinwire.wire import frame
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Message, Push, Update, encode
from thinwire.worker.momentum import take_over_momentum
from thinwire.worker.sides import (
    Round,
    ServerSide,
    WorkerSide,
    decode_into,
    entries,
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
        self._keys = tuple(keys)
        most_numel = piece_numel or piece_numel_for(self._keys, owners=workers)
        self._pieces = cut(self._keys, most_numel=most_numel)
        self._batches = batches(self._pieces)
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
        flat = [{key.name: flatten(own[key.name]) for key in self._keys} for own in gradients]
        rounds = [Round(step, learning_rate, _norm(own)) for own in flat]
        mean = {key.name: torch.empty(key.numel) for key in self._keys}
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
            pushed += sum(_nbytes(push) for push in pushes)
            pulled += _nbytes(update)
        if not finite:
            self._undo(step)
        shaped = {key.name: mean[key.name].view(key.shape) for key in self._keys}
        return Exchanged(shaped, pushed / len(gradients), pulled)

    def state_dict(self) -> dict[str, list[States] | States]:
        """All residuals by parameter: ``{"workers": [...], "server": ...}``."""
        return {
            "workers": [
                by_parameter(self._pieces, side.compressor.state_dict()) for side in self.workers
            ],
            "server": by_parameter(self._pieces, self.server.compressor.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, list[States] | States]) -> None:
        """Take over a copy, also one of another number of workers: the mean residual stays."""
        workers, server = state["workers"], state["server"]
        if not isinstance(workers, list) or isinstance(server, list):
            raise ConfigError("a cluster's state holds a list of workers and one server")
        if len(workers) != len(self.workers):
            workers = reassign(workers, workers=len(self.workers))
        for side, states in zip(self.workers, workers, strict=True):
            side.compressor.load_state_dict(by_piece(self._pieces, states))
        self.server.compressor.load_state_dict(by_piece(self._pieces, server))

    def _undo(self, step: int) -> None:
        self.server.compressor.undo_step(step)
        for worker in self.workers:
            worker.compressor.undo_step(step)

    def _push(self, rank: int, own: Gradients, batch: Sequence[Piece], round_: Round) -> Frame:
        encoded = self.workers[rank].push(batch, own, round_)
        rate = round_.learning_rate or 0.0
        message = Push(round_.step, rate, entries(range(len(batch)), encoded))
        return _sent(message, worker=rank, step=round_.step)

    def _answer(self, pushes: Sequence[Frame], batch: Sequence[Piece], round_: Round) -> Frame:
        numbers = range(len(batch))
        received = [read(push, Push, numbers=numbers, pieces=batch) for push in pushes]
        answers = self.server.answer(batch, received, round_)
        message = Update(round_.step + 1, entries(numbers, answers))
        return _sent(message, worker=frame.SERVER, step=round_.step)


class VirtualCluster:
    """Train ``net`` as n workers would, in one process.

    A recipe that keeps momentum (``tw.dgc``) takes that of a ``torch.optim.SGD`` over. Buffers such
    as batch-norm statistics are those of worker 0, as with DistributedDataParallel.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        recipe: Recipe,
        *,
        workers: int,
        seed: int = 0,
        piece_numel: int | None = None,
    ) -> None:
        take_over_momentum(recipe, optimizer)
        self._parameters = {n: p for n, p in net.named_parameters() if p.requires_grad}
        self._net, self._optimizer = net, optimizer
        keys = [Key(name, tuple(p.shape)) for name, p in self._parameters.items()]
        self.exchange = VirtualExchange(
            recipe, keys, workers=workers, seed=seed, piece_numel=piece_numel
        )
        self.steps = 0
        self.last: Exchanged | None = None

    def step(self, loss_of: Callable[[int], Tensor]) -> float:
        """n backward passes of ``loss_of(worker)``, the exchange, one optimizer step.

        Returns the mean loss. Gradients that parameters had are replaced.
        """
        before = [buffer.clone() for buffer in self._net.buffers()]
        after = before
        losses, gradients = [], []
        for worker in range(len(self.exchange.workers)):
            _restore(self._net, before)
            loss = loss_of(worker)
            gradients.append(self._backward(loss))
            losses.append(float(loss.detach()))
            if worker == 0:
                after = [buffer.clone() for buffer in self._net.buffers()]
        _restore(self._net, after)
        rate = float(self._optimizer.param_groups[0]["lr"])
        self.last = self.exchange.average(gradients, step=self.steps, learning_rate=rate)
        for name, parameter in self._parameters.items():
            parameter.grad = self.last.mean[name].to(parameter)
        self._optimizer.step()
        self.steps += 1
        return math.fsum(losses) / len(losses)

    def _backward(self, loss: Tensor) -> dict[str, Tensor]:
        """The gradients of one worker; zero for parameters that its loss does not use."""
        for parameter in self._parameters.values():
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad
            for name, p in self._parameters.items()
        }


def _sent(message: Message, *, worker: int, step: int) -> Frame:
    """What a peer would read: packed into bytes and unpacked again."""
    header, body = frame.pack(encode(message, run=1, epoch=1, worker=worker, step=step))
    return frame.unpack(memoryview(header + bytes(body)))


def _nbytes(sent: Frame) -> int:
    return frame.HEADER_NBYTES + len(sent.body)


def _norm(own: Gradients) -> float:
    return math.sqrt(math.fsum(_native.sum_squares(x) for x in own.values()))


def _restore(net: nn.Module, values: Sequence[Tensor]) -> None:
    for buffer, value in zip(net.buffers(), values, strict=True):
        buffer.copy_(value)
