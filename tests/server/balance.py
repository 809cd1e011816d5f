"""What a run must add up to: known gradients, the updates in the logs, and what is owed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from tests.inproc import InprocListener
from tests.server.servers import network
from thinwire.client.client import Client
from thinwire.compressor.encoded import decoded
from thinwire.recipe import Recipe
from thinwire.server.journal import Journal
from thinwire.server.log.log import Log
from thinwire.server.service import Service
from thinwire.server.settings import Rules
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
    """What a server that has ended holds: its state at the end, and all its updates."""

    def __init__(self, service: Service, updates: Iterable[Update]) -> None:
        if service.training.aggregate is None:
            raise AssertionError("the server holds nothing")
        self.aggregate = service.training.aggregate
        self.updates = list(updates)

    @classmethod
    def by_log(cls, folder: Path, recipe: Recipe, rules: Rules) -> Kept:
        """What its log holds."""
        log, recovery = Log.open(folder, new_run=1)
        with log:
            service = Service(
                InprocListener(), recipe, rules, journal=Journal(log), recovery=recovery
            )
            messages = [decode(frame) for frame in log.updates(after=0)]
        return cls(service, [message for message in messages if isinstance(message, Update)])

    @classmethod
    def by_service(cls, service: Service) -> Kept:
        """What it has in memory."""
        return cls(service, service.journal.history(after=0, most_nbytes=1 << 30))


def updates_of(servers: Iterable[Kept], name: str) -> Tensor:
    """All updates that servers have made."""
    total = torch.zeros(SHAPES[name].numel(), dtype=torch.float64)
    for server in servers:
        for update in server.updates:
            for entry in update.entries:
                piece = server.aggregate.pieces[entry.piece]
                if piece.key.name == name:
                    total[piece.start : piece.stop] += decoded(entry.encoded)
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
                for push in aggregate.open[number]:
                    total[piece.start : piece.stop] += decoded(push.encoded) / WORKERS
    return total.reshape(SHAPES[name])


def owed_by_clients(clients: Iterable[Client], name: str) -> Tensor:
    """Residuals of workers."""
    total = torch.zeros(SHAPES[name].numel(), dtype=torch.float64)
    for client in clients:
        attached = client._joined()
        states = attached.role.compressor.state_dict()
        for piece in attached.servers.pieces:
            if piece.key.name == name and piece.name in states:
                total[piece.start : piece.stop] += states[piece.name]["residual"] / WORKERS
    return total.reshape(SHAPES[name])
