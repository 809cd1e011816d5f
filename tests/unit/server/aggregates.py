"""A small model, recipes, and a worker that pushes to an Aggregate."""

from __future__ import annotations

import torch
from torch import Tensor

import thinwire as tw
from thinwire.compressor.compressor import Compressor
from thinwire.gradient.pieces import cut
from thinwire.recipe import Recipe
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.messages import Push

KEYS = [tw.Key("a", (40, 5)), tw.Key("b", (70,))]
PIECES = dict(enumerate(cut(KEYS, most_numel=128)))
RECIPES = [
    tw.doublesqueeze(tw.OneBit()),
    tw.doublesqueeze(tw.TopK(0.05)),
    tw.dgc(0.05),
    tw.clan(tw.Dither(4)),
    tw.dense(),
]


def gradient(worker: int, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + worker)
    return {key.name: torch.randn(key.numel, generator=generator) for key in KEYS}


class Worker:
    """A worker's side: compresses, and takes back what was refused."""

    def __init__(self, recipe: Recipe, rank: int, workers: int) -> None:
        self.compressor = Compressor(recipe.push, recipe.push_feedback, rank=rank, workers=workers)
        self.rank, self.step = rank, 0

    def push(self, version: int) -> tuple[int, Push]:
        flat = gradient(self.rank, self.step)
        entries = []
        for number, piece in PIECES.items():
            part = flat[piece.key.name][piece.start : piece.stop]
            one = self.compressor.compress_piece(piece, part, step=self.step)
            entries.append(
                Entry(number, EncodedBytes(one.wire_id, one.numel, memoryview(bytes(one.payload))))
            )
        self.step += 1
        return self.step - 1, Push(version, 0.1, tuple(entries))
