"""What a run must add up to: known gradients, the updates in the logs, and what is owed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

import thinwire as tw
from tests.server.servers import network
from thinwire.compressor.encoded import decoded
from thinwire.recipe import Recipe
from thinwire.server.journal import Journal
from thinwire.server.log.log import Log
from thinwire.server.service import Service
from thinwire.server.settings import Rules
from thinwire.transport.inproc import InprocListener
from thinwire.wire.messages import Update, decode

WORKERS = 3
SHAPES = {name: p.shape for name, p in network().named_parameters()}


def gradient(name: str, step: int, rank: int) -> Tensor:
    """The gradient of one parameter, whatever the weights are."""
    seed = 10_000 * list(SHAPES).index(name) + 100 * step + rank
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(seed))


def given(name: str, steps: Mapping[int, Iterable[int]]) -> Tensor:
    """The mean over all workers of all gradients; ``steps`` are those that each has made."""
    total = torch.zeros(SHAPES[name], dtype=torch.float64)
    for rank, made in steps.items():
        for step in made:
            total += gradient(name, step, rank).double() / WORKERS
    return total


class Kept:
    """What the log of a server that has ended holds: its state at the end, and all its updates."""

    def __init__(self, folder: Path, recipe: Recipe, rules: Rules) -> None:
        log, recovery = Log.open(folder, new_run=1)
        with log:
            service = Service(
                InprocListener(), recipe, rules, journal=Journal(log), recovery=recovery
            )
            messages = [decode(frame) for frame in log.updates(after=0)]
        if service.training.aggregate is None:
            raise AssertionError(f"{folder} holds nothing")
        self.aggregate = service.training.aggregate
        self.updates = [message for message in messages if isinstance(message, Update)]


def updates_of(servers: Iterable[Kept], name: str) -> Tensor:
    """All updates that servers have made."""
    total = torch.zeros(SHAPES[name].numel(), dtype=torch.float64)
    for server in servers:
        for update in server.updates:
            for entry in update.entries:
                piece = server.aggregate.pieces[entry.piece]
                if piece.key.name == name:
                    decoded = tw.Encoded(
                        entry.encoded.wire_id, entry.encoded.numel, entry.encoded.payload
                    ).decode()
                    total[piece.start : piece.stop] += decoded
    return total.reshape(SHAPES[name])


def owed_by(servers: Iterable[Kept], name: str) -> Tensor:
    """Residuals of servers, and pushes that are in no version yet."""
    total = torch.zeros(SHAPES[name].numel(), dtype=torch.float64)
    for server in servers:
        aggregate, states = server.aggregate, server.aggregate.compressor.state_dict()
        for number, piece in aggregate.pieces.items():
            if piece.key.name == name:
                if piece.name in states:
                    total[piece.start : piece.stop] += states[piece.name]["residual"]
                for one in aggregate.open[number]:
                    total[piece.start : piece.stop] += decoded(one.encoded) / WORKERS
    return total.reshape(SHAPES[name])
