"""Workers that make local steps in processes of their own, and faults at given moments of a round.

A worker keeps a checkpoint of every step, and begins with it if it has one. It notes what it pushes
in each round before it does so.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import thinwire as tw
from tests.server.local_workers import Worker
from tests.server.servers import loss_of
from thinwire.client.attached import Attached
from thinwire.recipe import Recipe

EVERY, VERSIONS = 4, 6
ROUND = 2
"""In which the fault is."""

ALONE, PUSHING, WAITING, OVERLAP, MERGING = "alone", "pushing", "waiting", "overlap", "merging"


@dataclass(frozen=True, slots=True)
class Fault:
    """A signal for process ``pid`` (None: the worker itself) at this moment of a round."""

    moment: str
    pid: int | None = None
    number: int = signal.SIGKILL

    def strike(self) -> None:
        os.kill(os.getpid() if self.pid is None else self.pid, self.number)


@dataclass(frozen=True, slots=True)
class Ended:
    """What a worker has in the end: global weights, what it warned of, what it owes by parameter,
    and how much was refused because it came too late."""

    weights: list[bytes]
    warned: list[str]
    owed: dict[str, torch.Tensor]
    refused_pieces: int


def work(
    addresses: Sequence[str],
    recipe: Recipe,
    rank: int,
    rounds: tw.Rounds,
    folder: Path,
    fault: Fault | None,
) -> Ended:
    """Train for ``VERSIONS`` versions and rounds."""
    said = logging.handlers.BufferingHandler(1000)
    logging.getLogger("thinwire").addHandler(said)
    worker = Worker(addresses, recipe, rank, every=rounds)
    checkpoint = folder / f"worker-{rank}.pt"
    if checkpoint.exists():
        worker.load(torch.load(checkpoint, weights_only=True))
    with worker.client as client:
        client.attach(worker.net, worker.optimizer)
        _note_rounds(worker, folder)
        if fault is not None:
            _strike_within(client, fault)
        while client.version < VERSIONS or client.steps < VERSIONS:
            made = client.stats().steps
            worker.optimizer.zero_grad()
            loss_of(worker.net, made, rank).backward()  # type: ignore[no-untyped-call]
            if fault is not None and made == _steps_before(fault.moment):
                fault.strike()
            worker.optimizer.step()
            _replace(checkpoint, worker.save())
        client.state_dict()  # so that all is acknowledged, or refused
        warned = [record.getMessage() for record in said.buffer]
        return Ended(worker.shown(), warned, _owed(client), client.stats().refused_pieces)


def pushed(folder: Path, rank: int) -> list[dict[str, torch.Tensor]]:
    """What this worker pushed in each round, by parameter."""
    files = sorted(folder.glob(f"pushed-{rank}-*.pt"))
    return [torch.load(file, weights_only=True) for file in files]


def _owed(client: tw.Client) -> dict[str, torch.Tensor]:
    attached = client._joined()
    residuals, kept = attached.role.compressor.state_dict(), attached.pushing._refused.kept
    owed = {name: torch.zeros(x.numel()) for name, x in attached.target.parameters.items()}
    for piece in attached.servers.pieces:
        part = owed[piece.key.name][piece.start : piece.stop]
        if "residual" in residuals.get(piece.name, {}):
            part += residuals[piece.name]["residual"]
        if piece.name in kept:
            part += kept[piece.name]
    return owed


def _note_rounds(worker: Worker, folder: Path) -> None:
    attached, weights = worker.client._joined(), worker.client._alone().weights
    push = attached.push_round

    def noted() -> int:
        changes = {
            name: x.grad.clone() for name, x in weights.tensors.items() if x.grad is not None
        }
        _replace(folder / f"pushed-{worker.rank}-{attached.steps:03}.pt", changes)
        return push()

    attached.push_round = noted  # type: ignore[method-assign]


def _steps_before(moment: str) -> int | None:
    """In which step this moment is, if it is in one."""
    return {ALONE: EVERY * ROUND + 2, OVERLAP: EVERY * (ROUND + 1) + 1}.get(moment)


def _strike_within(client: tw.Client, fault: Fault) -> None:
    attached, weights = client._joined(), client._alone().weights
    if fault.moment == PUSHING:
        attached.servers.push = _after_first(attached, fault, attached.servers.push)  # type: ignore[method-assign]
    elif fault.moment == WAITING:
        attached.finish_round = _before(attached, fault, attached.finish_round)  # type: ignore[method-assign]
    elif fault.moment == MERGING:
        weights.merge = _before(attached, fault, weights.merge)  # type: ignore[method-assign]


def _before(attached: Attached, fault: Fault, act: Callable[..., Any]) -> Callable[..., Any]:
    """Servers have counted all pushes then."""

    def acted(*arguments: Any) -> Any:
        if attached.steps == ROUND + 1:
            attached.state_dict()
            fault.strike()
        return act(*arguments)

    return acted


def _after_first(attached: Attached, fault: Fault, push: Callable[..., Any]) -> Callable[..., Any]:
    """The first server has counted its part then, others have got nothing."""
    struck: list[bool] = []

    def acted(step: int, *arguments: Any) -> None:
        push(step, *arguments)
        if step == ROUND and not struck:
            struck.append(True)
            attached.servers.sessions[0].flush()
            fault.strike()

    return acted


def _replace(path: Path, content: object) -> None:
    new = path.with_suffix(".new")
    torch.save(content, new)
    new.replace(path)
