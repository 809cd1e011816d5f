"""Servers are killed, frozen and cut off; in the end the weights are those of an undisturbed run.

Bit for bit, because a server forgets nothing that it has said, and counts every push once.
"""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.faults.training import RECIPES, WORKERS, rejoined, start_servers, start_workers
from tests.server.processes import ServerProcess, wait_until
from tests.server.servers import virtual
from tests.slow import first
from thinwire.server.log.snapshot import find_snapshots


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", first(RECIPES))
def test_a_server_killed_at_50_random_moments_changes_no_bit(name: str, tmp_path: Path) -> None:
    recipe, steps, kills = RECIPES[name], 700, 50
    chance = random.Random(5)  # noqa: S311 - not for secrets
    with ExitStack() as stack:
        servers = start_servers(stack, tmp_path, recipe, 2)
        workers = start_workers(stack, [s.address for s in servers], recipe, steps, tmp_path)
        before = -1
        for kill in range(kills):
            if kill == 0 or kill % 3:  # most lives get as far as training, on a busy machine, too
                wait_until(
                    partial(lambda n: rejoined(tmp_path) > n, before), "a worker joins again"
                )
            time.sleep(chance.uniform(0.0, 0.3))
            victim = chance.choice(servers)
            assert victim.process.is_alive(), "training ended before all kills"
            before = rejoined(tmp_path)
            victim.kill()
            victim.start()
        results = [worker.result() for worker in workers]
        assert [server.wait() for server in servers] == [0, 0]
        assert all(find_snapshots(server.folder / "log") for server in servers)
    assert sum(again for _, again in results) > kills / 2
    assert [found for found, _ in results] == [virtual(recipe, WORKERS, steps)] * WORKERS


@pytest.mark.timeout(240)
@pytest.mark.parametrize("who", ["server", "worker"])
def test_five_seconds_of_sigstop_change_no_bit(who: str, tmp_path: Path) -> None:
    recipe, steps = RECIPES["1 bit"], 120
    with ExitStack() as stack:
        servers = start_servers(stack, tmp_path, recipe, 2)
        workers = start_workers(stack, [s.address for s in servers], recipe, steps, tmp_path)
        victim = servers[1] if who == "server" else workers[1]
        time.sleep(0.5)
        victim.signal(signal.SIGSTOP)
        time.sleep(5.0)
        victim.signal(signal.SIGCONT)
        results = [worker.result() for worker in workers]
    assert [found for found, _ in results] == [virtual(recipe, WORKERS, steps)] * WORKERS


@pytest.mark.timeout(120)
def test_a_full_disk_stops_the_server_and_loses_nothing(tiny_disk: Path, tmp_path: Path) -> None:
    """It says so, workers wait, and when there is room again it goes on bit for bit."""
    recipe, steps = RECIPES["1 bit"], 22
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(600_000))
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(tiny_disk / "ps0", recipe, workers=WORKERS))
        workers = start_workers(stack, [server.address], recipe, steps, tmp_path)
        assert server.wait() == 1
        assert "LogError: log: " in server.log()
        assert "No space left" in server.log()
        ballast.unlink()
        server.start()
        results = [worker.result() for worker in workers]
    assert [found for found, _ in results] == [virtual(recipe, WORKERS, steps)] * WORKERS
