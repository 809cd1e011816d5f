"""Workers and servers in processes of their own, slow enough for faults to happen to them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import thinwire as tw
from tests.server.processes import Process, ServerProcess
from tests.server.servers import loss_of, network, plain_sgd, weights
from thinwire.recipe import Recipe

RECIPES = {"1 bit": tw.doublesqueeze(tw.OneBit()), "dgc": tw.dgc(0.02, momentum=0.9)}
WORKERS = 2

STEP_SECONDS = 0.02
"""The least that a step takes, so that training is not over before everything has happened to it:
700 steps are more than 50 lives of a server, of 0.3 s at most."""


def train(
    addresses: Sequence[str], recipe: Recipe, rank: int, steps: int, folder: Path
) -> tuple[list[bytes], int]:
    """The last weights of one worker, and how often it had to join again.

    Worker 1 begins its forward early, so that it is hit while a version is awaited there.
    """
    count = _rejoined_file(folder, rank)
    net = network()
    with tw.Client(
        addresses,
        recipe,
        rank=rank,
        workers=WORKERS,
        deadline_seconds=40.0,
        early_forward=rank == 1,
    ) as client:
        client.attach(net, plain_sgd(net))
        for step in range(steps):
            time.sleep(STEP_SECONDS)
            net.zero_grad()
            loss_of(net, step, rank).backward()  # type: ignore[no-untyped-call]
            client.step()
            new = count.with_suffix(".new")
            new.write_text(str(client.stats().rejoined))
            new.replace(count)
        client.settle()
        return weights(net), client.stats().rejoined


def rejoined(folder: Path) -> int:
    """How often workers had to join again so far, as ``start_workers`` lets them write there; -1
    before all of them have made a step."""
    files = [_rejoined_file(folder, rank) for rank in range(WORKERS)]
    return sum(int(file.read_text()) for file in files) if all(map(Path.exists, files)) else -1


def _rejoined_file(folder: Path, rank: int) -> Path:
    return folder / f"rejoined-{rank}"


def start_workers(
    stack: ExitStack, addresses: Sequence[str], recipe: Recipe, steps: int, folder: Path
) -> list[Process]:
    return [
        stack.enter_context(Process(train, addresses, recipe, rank, steps, folder))
        for rank in range(WORKERS)
    ]


def start_servers(
    stack: ExitStack, folder: Path, recipe: Recipe, count: int
) -> list[ServerProcess]:
    return [
        stack.enter_context(
            # Snapshots every few steps, so that restarts begin with one.
            ServerProcess(folder / str(i), recipe, workers=WORKERS, snapshot_nbytes=1)
        )
        for i in range(count)
    ]
