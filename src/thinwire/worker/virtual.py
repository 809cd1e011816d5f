"""n workers and the server side, one after the other in this process. No network, no threads.

Exactly what n machines would compute, with the same Compressor, codecs and frames: each worker
compresses and packs pushes; the server unpacks them, compresses their mean and packs updates; those
are unpacked and decoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from thinwire import _native
from thinwire.codec import registry
from thinwire.compressor import Compressor, Encoded, flatten, is_usable, untouched
from thinwire.errors import ConfigError, RemoteProtocolError
from thinwire.feedback.base import Chain
from thinwire.feedback.momentum import Momentum
from thinwire.gradient.keys import Key
from thinwire.gradient.pieces import PIECE_NUMEL, Piece, cut
from thinwire.optim.sgd import SGD
from thinwire.recipe import Recipe
from thinwire.settings import check_whole
from thinwire.wire import frame
from thinwire.wire.body import Entry
from thinwire.wire.messages import Message, Push, Update, decode, encode
from thinwire.worker.state import States, by_parameter, by_piece, reassign

Gradients = Mapping[str, Tensor]
Kind = TypeVar("Kind", Push, Update)

FRAME_NUMEL = 1 << 23
"""Elements per frame: even dense, they fit into the 65 MiB that a frame may have."""


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
        piece_numel: int = PIECE_NUMEL,
    ) -> None:
        check_whole(workers, least=1, owner="VirtualExchange", field="workers")
        self._keys = tuple(keys)
        self._pieces = cut(self._keys, most_numel=piece_numel)
        self._batches = _batches(self._pieces)
        self.workers = [
            Compressor(recipe.push, recipe.push_feedback, seed=seed, rank=rank, workers=workers)
            for rank in range(workers)
        ]
        # The rank after the last worker's: the server draws random numbers of its own.
        self.server = Compressor(
            recipe.pull, recipe.pull_feedback, seed=seed, rank=workers, workers=workers
        )

    def average(
        self, gradients: Sequence[Gradients], *, step: int, learning_rate: float | None = None
    ) -> Exchanged:
        """The mean of one mapping of gradients per worker, each way as the recipe says.

        If one gradient of one worker is not finite, all travel as they are and no state changes.
        """
        flat = [{key.name: flatten(own[key.name]) for key in self._keys} for own in gradients]
        usable = all(is_usable(x) for own in flat for x in own.values())
        round_ = _Round(step, learning_rate, tuple(_norm(own) for own in flat), usable)
        mean = {key.name: torch.empty(key.shape) for key in self._keys}
        pushed = pulled = 0
        for batch in self._batches:
            pushes = [self._push(rank, own, batch, round_) for rank, own in enumerate(flat)]
            update = self._answer(pushes, batch, round_)
            _decode_into(mean, update, batch)
            pushed += sum(len(push) for push in pushes)
            pulled += len(update)
        return Exchanged(mean, pushed / len(gradients), pulled)

    def state_dict(self) -> dict[str, list[States] | States]:
        """All residuals by parameter: ``{"workers": [...], "server": ...}``."""
        return {
            "workers": [by_parameter(self._pieces, w.state_dict()) for w in self.workers],
            "server": by_parameter(self._pieces, self.server.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, list[States] | States]) -> None:
        """Take over a copy, also one of another number of workers: the mean residual stays."""
        workers, server = state["workers"], state["server"]
        if not isinstance(workers, list) or isinstance(server, list):
            raise ConfigError("a cluster's state holds a list of workers and one server")
        own = workers if len(workers) == len(self.workers) else None
        for compressor, states in zip(
            self.workers, own or reassign(workers, workers=len(self.workers)), strict=True
        ):
            compressor.load_state_dict(by_piece(self._pieces, states))
        self.server.load_state_dict(by_piece(self._pieces, server))

    def _push(self, rank: int, own: Gradients, batch: Sequence[Piece], round_: _Round) -> bytes:
        encoded = [
            self.workers[rank].compress_piece(
                piece,
                _slice(own, piece),
                step=round_.step,
                gradient_norm=round_.norms[rank],
                learning_rate=round_.learning_rate,
            )
            if round_.usable
            else untouched(_slice(own, piece))
            for piece in batch
        ]
        message = Push(round_.step, round_.learning_rate or 0.0, _entries(encoded))
        return _to_bytes(message, rank, round_.step)

    def _answer(self, pushes: Sequence[bytes], batch: Sequence[Piece], round_: _Round) -> bytes:
        received = [_from_bytes(push, Push).entries for push in pushes]
        answers = [
            self._answer_piece(piece, [_encoded(entry) for entry in entries], round_)
            for piece, *entries in zip(batch, *received, strict=True)
        ]
        message = Update(round_.step + 1, _entries(answers))
        return _to_bytes(message, frame.SERVER, round_.step)

    def _answer_piece(self, piece: Piece, pushes: Sequence[Encoded], round_: _Round) -> Encoded:
        weight = 1 / len(pushes)
        if round_.usable:
            return self.server.compress_sum(
                piece, pushes, weight=weight, step=round_.step, learning_rate=round_.learning_rate
            )
        mean = torch.zeros(piece.numel)
        for push in pushes:
            registry.add(push.wire_id, push.payload, mean, weight=weight)
        return untouched(mean)


class VirtualCluster:
    """Train ``net`` as n workers would, in one process.

    The optimizer must leave momentum to a recipe that keeps it (``tw.dgc``). Buffers such as
    batch-norm statistics are those of worker 0, as with DistributedDataParallel.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        recipe: Recipe,
        *,
        workers: int,
        seed: int = 0,
        piece_numel: int = PIECE_NUMEL,
    ) -> None:
        check_momentum_is_kept_once(recipe, optimizer)
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


def check_momentum_is_kept_once(recipe: Recipe, optimizer: Optimizer) -> None:
    """Momentum in the feedback and in the optimizer would act twice (algorithms.md P2)."""
    feedback = recipe.push_feedback
    stages = feedback.stages if isinstance(feedback, Chain) else (feedback,)
    if isinstance(optimizer, SGD) or not any(isinstance(stage, Momentum) for stage in stages):
        return
    if any(group.get("momentum") or "betas" in group for group in optimizer.param_groups):
        raise ConfigError(
            "this recipe keeps the momentum itself: use tw.optim.SGD, or torch.optim.SGD with "
            "momentum=0"
        )


@dataclass(frozen=True, slots=True)
class _Round:
    """One step: what all of its messages have in common."""

    step: int
    learning_rate: float | None
    norms: tuple[float, ...]
    usable: bool


def _norm(own: Gradients) -> float:
    return math.sqrt(math.fsum(_native.sum_squares(x) for x in own.values()))


def _batches(pieces: Sequence[Piece]) -> list[list[Piece]]:
    batches: list[list[Piece]] = [[]]
    numel = 0
    for piece in pieces:
        if batches[-1] and numel + piece.numel > FRAME_NUMEL:
            batches.append([])
            numel = 0
        batches[-1].append(piece)
        numel += piece.numel
    return batches


def _slice(own: Gradients, piece: Piece) -> Tensor:
    return own[piece.key.name][piece.start : piece.stop]


def _decode_into(mean: dict[str, Tensor], update: bytes, batch: Sequence[Piece]) -> None:
    for piece, entry in zip(batch, _from_bytes(update, Update).entries, strict=True):
        out = mean[piece.key.name].view(-1)[piece.start : piece.stop]
        registry.decode(entry.codec, entry.payload, out)


def _restore(net: nn.Module, values: Sequence[Tensor]) -> None:
    for buffer, value in zip(net.buffers(), values, strict=True):
        buffer.copy_(value)


def _entries(encoded: Sequence[Encoded]) -> tuple[Entry, ...]:
    return tuple(
        Entry(piece, one.wire_id, one.numel, memoryview(one.payload))
        for piece, one in enumerate(encoded)
    )


def _encoded(entry: Entry) -> Encoded:
    return Encoded(entry.codec, entry.numel, entry.payload)


def _to_bytes(message: Message, worker: int, step: int) -> bytes:
    return b"".join(frame.pack(encode(message, run=1, epoch=1, worker=worker, step=step)))


def _from_bytes(data: bytes, kind: type[Kind]) -> Kind:
    message = decode(frame.unpack(memoryview(data)))
    if not isinstance(message, kind):
        raise RemoteProtocolError(f"exchange: {type(message).__name__}, expected {kind.__name__}")
    return message
