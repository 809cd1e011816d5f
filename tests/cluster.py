"""Workers and a server in one process: real compressors, real frames, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import thinwire as tw
from thinwire.wire.body import Entry
from thinwire.wire.frame import pack, unpack
from thinwire.wire.messages import Push, decode, encode


def carried(sent: tw.Encoded, *, worker: int = 0, step: int = 0) -> tw.Encoded:
    """What arrives at the other end of a wire: the same bytes, through a frame."""
    entry = Entry(0, sent)
    push = Push(version=0, learning_rate=0.0, entries=(entry,))
    frame = encode(push, run=1, epoch=1, worker=worker, step=step)
    received = decode(unpack(memoryview(b"".join(pack(frame)))))
    assert isinstance(received, Push)
    (entry,) = received.entries
    return tw.Encoded(entry.encoded.wire_id, entry.encoded.numel, entry.encoded.payload)


class Cluster:
    """n workers with one parameter "w", and the server that averages what they send."""

    def __init__(self, recipe: tw.Recipe, shape: tuple[int, ...], *, workers: int) -> None:
        self.key = tw.Key("w", shape)
        self.workers = [
            tw.Compressor(recipe.push, recipe.push_feedback, rank=rank, workers=workers)
            for rank in range(workers)
        ]
        self.server = tw.Compressor(recipe.pull, recipe.pull_feedback, workers=workers)
        self.pushes: list[tw.Encoded] = []

    def exchange(
        self, gradients: Sequence[Tensor], *, step: int, learning_rate: float | None = None
    ) -> Tensor:
        """The mean gradient that every worker gets back."""
        self.pushes = [
            carried(
                worker.compress_all({"w": g}, step=step, learning_rate=learning_rate)["w"],
                worker=rank,
                step=step,
            )
            for rank, (worker, g) in enumerate(zip(self.workers, gradients, strict=True))
        ]
        answer = self.server.compress_sum(
            tw.Piece.whole(self.key),
            self.pushes,
            weight=1 / len(self.workers),
            step=step,
            learning_rate=learning_rate,
        )
        return carried(answer).decode().reshape(self.key.shape)

    def mean_residual(self) -> Tensor:
        """What all workers together still owe, in units of the mean gradient."""
        owed = [worker.state_dict()["w"]["residual"] for worker in self.workers]
        return torch.stack(owed).mean(0).reshape(self.key.shape)


def random_gradients(steps: int, workers: int, shape: tuple[int, ...]) -> list[list[Tensor]]:
    """Fixed gradients, as [step][worker]: what a law about "the same gradients" is about."""
    chance = torch.Generator().manual_seed(7)
    return [[torch.randn(shape, generator=chance) for _ in range(workers)] for _ in range(steps)]
