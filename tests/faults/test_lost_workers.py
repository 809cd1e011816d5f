"""Workers that are killed: others are told, or go on, and a new process takes the place.

Gradients here do not depend on weights, so that it is known what a run must add up to.
"""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thinwire as tw
from tests.server.balance import SHAPES, WORKERS, Kept, given, gradient, owed_by, updates_of
from tests.server.processes import Process, ServerProcess, wait_until
from tests.server.servers import network, plain_sgd
from thinwire.client.session import ServerSession
from thinwire.server.settings import Rules
from thinwire.wire.messages import CatchUp

RECIPE = tw.doublesqueeze(tw.OneBit())
VICTIM, DEATH, STEPS = 1, 7, 16
IDLE_SECONDS = 6.0
"""Far longer than a server waits until it says for whom, busy machine or not."""


def work(
    addresses: Sequence[str], rank: int, die_at: int | None, version: int = 0
) -> dict[str, Any]:
    """Push known gradients until ``STEPS``; a process may kill itself before a step."""
    net = network()
    optimizer = plain_sgd(net)
    with tw.Client(
        addresses, RECIPE, rank=rank, workers=WORKERS, deadline_seconds=60.0, report_seconds=1e-9
    ) as client:
        client.attach(net, optimizer, version=version)
        first = client.steps
        while client.version < STEPS:
            if client.steps == die_at:
                be_heard(client)
                os.kill(os.getpid(), signal.SIGKILL)
            for name, parameter in net.named_parameters():
                parameter.grad = gradient(name, client.steps, rank)
            client.step()
        return {
            "first": first,
            "steps": client.steps,
            "weights": [p.detach().clone() for p in net.parameters()],
            "push": client.state_dict()["push"],
            "at": client.version,
        }


def be_heard(client: tw.Client) -> None:
    """Wait until the servers have heard all that this worker said: they answer in order."""
    client.state_dict()  # so that nothing else is on its way
    for session in client._joined().servers.sessions:
        before = session.received_nbytes
        with session._lock:
            session._try_to_send(CatchUp(client.version), 0)
        wait_until(partial(has_received, session, before), "an answer")


def has_received(session: ServerSession, nbytes: int) -> bool:
    return session.received_nbytes > nbytes


def start(
    stack: ExitStack, servers: Sequence[ServerProcess], rank: int, die_at: int | None = None
) -> Process:
    return stack.enter_context(Process(work, [s.address for s in servers], rank, die_at))


@pytest.mark.timeout(120)
def test_I4_a_replaced_worker_loses_its_residual_and_nothing_else(tmp_path: Path) -> None:
    """Its norm is what the server reports."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                ServerProcess(
                    tmp_path / str(i),
                    RECIPE,
                    workers=WORKERS,
                    on_loss="continue",
                    loss_seconds=2.0,
                )
            )
            for i in range(2)
        ]
        others = [start(stack, servers, rank) for rank in range(WORKERS) if rank != VICTIM]
        victim = start(stack, servers, VICTIM, die_at=DEATH)
        wait_until(lambda: "worker 1 is lost" in servers[0].log(), "the loss is noticed")
        wait_until(lambda: "worker 1 is lost" in servers[1].log(), "the loss is noticed")
        assert victim.process.exitcode == -signal.SIGKILL
        results = {0: others[0].result(), 2: others[1].result()}
        reported = [owed_norm(server.log()) for server in servers]
        for server in servers:
            server.kill()
    rules = Rules.synchronous(WORKERS)
    lost = missing([Kept.by_log(s.folder / "log", RECIPE, rules) for s in servers], results)
    assert all(result["at"] == STEPS for result in results.values())
    pairs = zip(results[0]["weights"], results[2]["weights"], strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    norm = WORKERS * math.sqrt(sum(float(x.square().sum()) for x in lost.values()))
    assert reported[0] == reported[1]
    assert norm == pytest.approx(reported[0], rel=1e-3)
    assert norm > 1.0  # there was something to lose


def owed_norm(log: str) -> float:
    [norm] = re.findall(r"worker 1 is lost.* it owed a residual of norm ([0-9.e+-]+) after", log)
    return float(norm)


def missing(servers: Sequence[Kept], results: dict[int, dict[str, Any]]) -> dict[str, Tensor]:
    """All gradients, less updates and what is owed by workers that live and by servers."""
    found = {}
    steps = {rank: range(result["steps"]) for rank, result in results.items()}
    steps[VICTIM] = range(DEATH)
    for name in SHAPES:
        total = given(name, steps) - updates_of(servers, name) - owed_by(servers, name)
        for result in results.values():
            total -= result["push"][name]["residual"].double().reshape(SHAPES[name]) / WORKERS
        found[name] = total
    return found


@pytest.mark.timeout(120)
def test_a_new_process_takes_the_place_of_a_lost_worker(tmp_path: Path) -> None:
    """From the first weights and the log; it is then equal to all others."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                ServerProcess(
                    tmp_path / str(i), RECIPE, workers=WORKERS, on_loss="continue", loss_seconds=60
                )
            )
            for i in range(2)
        ]
        others = [start(stack, servers, rank) for rank in range(WORKERS) if rank != VICTIM]
        victim = start(stack, servers, VICTIM, die_at=DEATH)
        victim.process.join(60)
        replaced = start(stack, servers, VICTIM)
        results = [process.result() for process in (*others, replaced)]
    assert results[-1]["first"] == DEATH
    assert {result["at"] for result in results} == {STEPS}
    for result in results[1:]:
        pairs = zip(results[0]["weights"], result["weights"], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.timeout(120)
def test_on_loss_stop_tells_everyone_who_is_lost(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                ServerProcess(tmp_path / str(i), RECIPE, workers=WORKERS, loss_seconds=1.0)
            )
            for i in range(2)
        ]
        others = [start(stack, servers, rank) for rank in range(WORKERS) if rank != VICTIM]
        start(stack, servers, VICTIM, die_at=DEATH)
        for other in others:
            with pytest.raises(AssertionError, match=r"WorkerLost: .*worker 1 is lost: away for"):
                other.result()
        assert [server.wait() for server in servers] == [1, 1]
        assert all("WorkerLost: worker 1 is lost" in server.log() for server in servers)


def wait_alone(addresses: Sequence[str]) -> str:
    net = network()
    client = tw.Client(addresses, RECIPE, rank=0, workers=WORKERS, deadline_seconds=6.0)
    client.attach(net, plain_sgd(net))
    try:
        client.step()
    except tw.ThinwireError as error:
        return f"{type(error).__name__}: {error}"
    return "nobody was waited for"


@pytest.mark.timeout(120)
def test_who_gave_up_is_not_the_only_one_that_is_named(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "0", RECIPE, workers=WORKERS, loss_seconds=1.0) as server,
        Process(wait_alone, [server.address]) as worker,
    ):
        worker.result()
        assert server.wait() == 1
    lost = r"worker 0 is lost: away for .*; version 1 waits for workers \[1, 2\]"
    assert re.search(lost, server.log())


@pytest.mark.timeout(120)
def test_who_waits_in_vain_is_told_for_whom(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "0", RECIPE, workers=WORKERS, late_seconds=2.0) as server:
        time.sleep(IDLE_SECONDS)  # in which nobody waits for anybody
        with Process(wait_alone, [server.address]) as worker:
            text = worker.result()
        waited = re.search(r"version 1 waits for workers \[1, 2\], (\d+) s", server.log())
    assert waited is not None
    assert int(waited[1]) < IDLE_SECONDS
    assert "WorkerLost: step 0: version 1 of 0.weight" in text
    assert "did not come within 6 s: the servers wait for workers 1, 2" in text
