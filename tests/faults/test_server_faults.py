"""Servers are killed, frozen and cut off; in the end the weights are those of an undisturbed run.

Bit for bit, because a server forgets nothing that it has said, and counts every push once.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import thinwire as tw
from tests.server.processes import Process, ServerProcess
from tests.server.servers import loss_of, network, plain_sgd, virtual, weights
from tests.slow import first
from thinwire.recipe import Recipe
from thinwire.server.snapshot import find_snapshots

RECIPES = {"1 bit": tw.doublesqueeze(tw.OneBit()), "dgc": tw.dgc(0.02, momentum=0.9)}
WORKERS = 2

STEP_SECONDS = 0.02
"""The least that a step takes, so that training is not over before everything has happened to it:
700 steps are more than 50 lives of a server, of 0.3 s at most."""


def train(
    addresses: Sequence[str], recipe: Recipe, rank: int, steps: int
) -> tuple[list[bytes], int]:
    """The last weights of one worker, and how often it had to join again.

    Worker 1 begins its forward early, so that it is hit while a version is awaited there.
    """
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
        client.settle()
        return weights(net), client.stats().rejoined


def start_workers(
    stack: ExitStack, addresses: Sequence[str], recipe: Recipe, steps: int
) -> list[Process]:
    return [
        stack.enter_context(Process(train, addresses, recipe, rank, steps))
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


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", first(RECIPES))
def test_a_server_killed_at_50_random_moments_changes_no_bit(name: str, tmp_path: Path) -> None:
    recipe, steps, kills = RECIPES[name], 700, 50
    chance = random.Random(5)  # noqa: S311 - not for secrets
    with ExitStack() as stack:
        servers = start_servers(stack, tmp_path, recipe, 2)
        workers = start_workers(stack, [s.address for s in servers], recipe, steps)
        for _ in range(kills):
            time.sleep(chance.uniform(0.0, 0.3))
            victim = chance.choice(servers)
            assert victim.process.is_alive(), "training ended before all kills"
            victim.kill()
            victim.start()
        results = [worker.result() for worker in workers]
        assert [server.wait() for server in servers] == [0, 0]
        assert all(find_snapshots(server.folder / "log") for server in servers)
    assert sum(rejoined for _, rejoined in results) > kills / 2
    assert [found for found, _ in results] == [virtual(recipe, WORKERS, steps)] * WORKERS


@pytest.mark.timeout(240)
@pytest.mark.parametrize("who", ["server", "worker"])
def test_five_seconds_of_sigstop_change_no_bit(who: str, tmp_path: Path) -> None:
    recipe, steps = RECIPES["1 bit"], 120
    with ExitStack() as stack:
        servers = start_servers(stack, tmp_path, recipe, 2)
        workers = start_workers(stack, [s.address for s in servers], recipe, steps)
        victim = servers[1] if who == "server" else workers[1]
        time.sleep(0.5)
        victim.signal(signal.SIGSTOP)
        time.sleep(5.0)
        victim.signal(signal.SIGCONT)
        results = [worker.result() for worker in workers]
    assert [found for found, _ in results] == [virtual(recipe, WORKERS, steps)] * WORKERS


@pytest.mark.timeout(120)
def test_a_full_disk_stops_the_server_and_loses_nothing(tiny_disk: Path) -> None:
    """It says so, workers wait, and when there is room again it goes on bit for bit."""
    recipe, steps = RECIPES["1 bit"], 22
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(600_000))
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(tiny_disk / "ps0", recipe, workers=WORKERS))
        workers = start_workers(stack, [server.address], recipe, steps)
        assert server.wait() == 1
        assert "LogError: log: " in server.log()
        assert "No space left" in server.log()
        ballast.unlink()
        server.start()
        results = [worker.result() for worker in workers]
    assert [found for found, _ in results] == [virtual(recipe, WORKERS, steps)] * WORKERS
