"""Gradients of n workers to one mean, through real frames, in one process. No network, no threads.

Each worker compresses and packs a push; the server unpacks the pushes, compresses their mean and
packs an update; that is unpacked and decoded: what n machines would compute, and would send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from thinwire.codec import registry
from thinwire.compressor import Compressor, Encoded
from thinwire.errors import RemoteProtocolError
from thinwire.gradient.keys import Key
from thinwire.recipe import Recipe
from thinwire.wire import frame
from thinwire.wire.body import Entry
from thinwire.wire.messages import Message, Push, Update, decode, encode

Gradients = Mapping[str, Tensor]
Kind = TypeVar("Kind", Push, Update)


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The mean as every worker decodes it, and the bytes of one step, frames and all.

    ``pushed_nbytes`` and ``pulled_nbytes`` are what one worker sends (on average) and receives.
    """

    mean: dict[str, Tensor]
    pushed_nbytes: float
    pulled_nbytes: int


class Exchange:
    """Both sides of a recipe. Piece i of a frame is the i-th of ``keys``."""

    def __init__(self, recipe: Recipe, keys: Sequence[Key], *, workers: int, seed: int) -> None:
        self._keys = tuple(keys)
        self.workers = [
            Compressor(recipe.push, recipe.push_feedback, seed=seed, rank=rank, workers=workers)
            for rank in range(workers)
        ]
        # The rank after the last worker's: the server draws random numbers of its own.
        self.server = Compressor(
            recipe.pull, recipe.pull_feedback, seed=seed, rank=workers, workers=workers
        )

    def average(self, gradients: Sequence[Gradients], *, step: int) -> Exchanged:
        """The mean of one mapping of gradients per worker, each way as the recipe says."""
        pushes = [self._push(rank, own, step) for rank, own in enumerate(gradients)]
        update = self._answer(pushes, step)
        pushed = sum(len(push) for push in pushes) / len(pushes)
        return Exchanged(self._decode(update), pushed, len(update))

    def _push(self, rank: int, gradients: Gradients, step: int) -> bytes:
        encoded = self.workers[rank].compress_all(
            {key.name: gradients[key.name] for key in self._keys}, step=step
        )
        entries = _entries([encoded[key.name] for key in self._keys])
        return _to_bytes(Push(version=step, learning_rate=0.0, entries=entries), rank, step)

    def _answer(self, pushes: Sequence[bytes], step: int) -> bytes:
        received = [_from_bytes(push, Push).entries for push in pushes]
        means = [
            self.server.compress_sum(
                key, [_encoded(entry) for entry in entries], weight=1 / len(pushes), step=step
            )
            for key, *entries in zip(self._keys, *received, strict=True)
        ]
        return _to_bytes(Update(version=step + 1, entries=_entries(means)), frame.SERVER, step)

    def _decode(self, update: bytes) -> dict[str, Tensor]:
        mean = {}
        for key, entry in zip(self._keys, _from_bytes(update, Update).entries, strict=True):
            mean[key.name] = torch.empty(key.shape)
            registry.decode(entry.codec, entry.payload, mean[key.name].view(-1))
        return mean


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
