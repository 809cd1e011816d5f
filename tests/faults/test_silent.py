"""More silent connections than a server has places: those who train do not notice."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import thinwire as tw
from tests.faults import wire
from tests.faults.crowd import say_nothing
from tests.server.processes import Process, ServerProcess, wait_until
from tests.server.servers import loss_of, network, plain_sgd, virtual, weights
from tests.transports import DEADLINE_SECONDS, Rig, frame, pair, tcp, tls
from thinwire.keys.settings import WorkerKeys
from thinwire.transport.peer_limits import TransportLimits

RECIPE = tw.doublesqueeze(tw.OneBit())
WORKERS, STEPS, ROUNDS = 2, 150, 2
PROCESSES, CONNECTIONS = 3, 600
DESCRIPTORS = 1024
KEPT = 0.8
"""Of the versions in a second that there are without the crowd, at least."""


def train(
    address: str, rank: int, steps: int, keys: WorkerKeys | None
) -> tuple[list[bytes], int, float, float]:
    """The last weights, how often it joined again, and when its first and its last step ended."""
    net = network()
    with tw.Client(
        [address], RECIPE, rank=rank, workers=WORKERS, keys=keys, deadline_seconds=60.0
    ) as client:
        client.attach(net, plain_sgd(net))
        began = 0.0
        for step in range(steps):
            net.zero_grad()
            loss_of(net, step, rank).backward()  # type: ignore[no-untyped-call]
            client.step()
            began = began or time.monotonic()
        ended = time.monotonic()
        return weights(net), client.stats().rejoined, began, ended


def versions_per_second(
    folder: Path, keys: bool, crowd: int, expected: list[bytes]
) -> tuple[float, int]:
    """Of a run of its own, with so many processes that crowd the server; and what was logged."""
    server_keys, worker_keys = pair() if keys else (None, None)
    with ExitStack() as stack:
        server = stack.enter_context(
            ServerProcess(folder, RECIPE, workers=WORKERS, keys=server_keys)
        )
        assert server.process.pid is not None
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        wait_until(lambda: (folder / "log").exists(), "the server is there")
        for _ in range(crowd):
            stack.enter_context(Process(say_nothing, server.address, CONNECTIONS))
        if crowd:
            wait_until(lambda: "connections have sent no frame" in server.log(), "the crowd")
        # They join through the crowd.
        workers = [
            stack.enter_context(Process(train, server.address, rank, STEPS, worker_keys))
            for rank in range(WORKERS)
        ]
        results = [worker.result() for worker in workers]
        lines = server.log().count("\n")
    assert [found for found, _, _, _ in results] == [expected] * WORKERS
    assert [rejoined for _, rejoined, _, _ in results] == [0] * WORKERS
    began, ended = min(r[2] for r in results), max(r[3] for r in results)
    return (STEPS - 1) / (ended - began), lines


@pytest.mark.timeout(240)
@pytest.mark.parametrize("keys", [False, True], ids=["plain", "keys"])
def test_workers_join_through_a_crowd_that_says_nothing_and_train(
    keys: bool, tmp_path: Path
) -> None:
    expected = virtual(RECIPE, WORKERS, STEPS)
    _, lines = versions_per_second(tmp_path, keys, PROCESSES, expected)
    assert lines < 100, "a few lines in ten seconds"


@pytest.mark.slow
@pytest.mark.timeout(480)
@pytest.mark.parametrize("keys", [False, True], ids=["plain", "keys"])
def test_a_crowd_that_says_nothing_does_not_slow_training(keys: bool, tmp_path: Path) -> None:
    """The best of some rounds of each, in turns: other processes may disturb any of them."""
    expected = virtual(RECIPE, WORKERS, STEPS)
    alone = crowded = 0.0
    for attempt in range(4 * ROUNDS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        alone = max(alone, versions_per_second(folder / "alone", keys, 0, expected)[0])
        crowded = max(crowded, versions_per_second(folder / "crowd", keys, PROCESSES, expected)[0])
        if attempt >= ROUNDS - 1 and crowded >= KEPT * alone:
            break
    print(f"\n{alone:.1f} versions per second alone, {crowded:.1f} in the crowd")
    assert crowded >= KEPT * alone


@pytest.mark.parametrize("make", [tcp, tls])
def test_who_was_let_in_gives_no_place_to_those_who_say_nothing(
    make: Callable[[TransportLimits], Rig],
) -> None:
    """Though it has sent no frame either, and is the oldest."""
    rig = make(TransportLimits(max_silent=4))
    honest = rig.connect()
    with ExitStack() as stack:
        crowd = [stack.enter_context(wire.tcp(rig.listener.address)) for _ in range(40)]
        for silent in crowd[:37]:
            assert wire.is_cut(silent)
        honest.send(b"hello", deadline_seconds=DEADLINE_SECONDS)
        assert bytes(frame(rig.listener).frame) == b"hello"
    rig.close()
