"""The law of DoubleSqueeze, measured live: real processes, three workers and two servers.

All gradients = all updates + what workers and servers owe; while pushes are refused for being too
old, connections are cut and servers are killed.
"""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import thinwire as tw
from tests.faults.proxy import Proxy
from tests.server.balance import SHAPES, WORKERS, Kept, given, gradient, owed_by, updates_of
from tests.server.processes import Process, ServerProcess
from tests.server.servers import network, plain_sgd
from tests.slow import first, slow
from thinwire.recipe import Recipe
from thinwire.server.settings import Rules

VERSIONS = 150
CODECS: dict[str, tw.OneBit | tw.TopK] = {"1 bit": tw.OneBit(), "top-k": tw.TopK(0.05)}


def work(addresses: Sequence[str], recipe: Recipe, rank: int) -> dict[str, Any]:
    """Push known gradients, the last worker slowly, until there are enough versions."""
    net = network()
    applied = {}
    with tw.Client(addresses, recipe, rank=rank, workers=WORKERS, deadline_seconds=60.0) as client:
        optimizer = plain_sgd(net)
        optimizer.register_step_pre_hook(
            lambda *_: applied.update({client.version: fingerprint(net)})
        )
        client.attach(net, optimizer)
        while client.version < VERSIONS:
            time.sleep(0.02 if rank == WORKERS - 1 else 0.002)  # backward
            for name, parameter in net.named_parameters():
                parameter.grad = gradient(name, client.steps, rank)
            client.step()
        push, stats = client.state_dict()["push"], client.stats()
        return {
            "steps": client.steps,
            "push": push,
            "applied": applied,
            "refused": stats.refused_pieces,
            "rejoined": stats.rejoined,
        }


def fingerprint(net: torch.nn.Module) -> float:
    """Of the update that is about to be applied."""
    return sum(float(p.grad.double().sum()) for p in net.parameters() if p.grad is not None)


def disturb(servers: Sequence[ServerProcess], proxies: Sequence[Proxy]) -> None:
    """While training goes on: cut connections, and kill servers."""
    chance = random.Random(3)  # noqa: S311 - not for secrets
    for _ in range(4):
        proxy = chance.choice(proxies)
        proxy.wait_for_traffic()
        proxy.cut()
        number = chance.randrange(len(servers))
        proxies[number].wait_for_traffic()
        servers[number].kill()
        servers[number].start()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("codec", first(CODECS))
@pytest.mark.parametrize("rules", [Rules(3, 3, 0), Rules(3, 1, 4), slow(Rules(3, 2, 1))], ids=repr)
def test_I4_balances_live(codec: str, rules: Rules, tmp_path: Path) -> None:
    recipe = tw.doublesqueeze(CODECS[codec])
    options = {"workers": 3, "quorum": rules.quorum, "staleness": rules.staleness}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ServerProcess(tmp_path / str(i), recipe, **options))
            for i in range(2)
        ]
        proxies = [
            stack.enter_context(Proxy("127.0.0.1", int(server.address.rpartition(":")[2])))
            for server in servers
        ]
        addresses = [proxy.address for proxy in proxies]
        workers = [
            stack.enter_context(Process(work, addresses, recipe, rank)) for rank in range(WORKERS)
        ]
        disturb(servers, proxies)
        results = [worker.result() for worker in workers]
    kept = [Kept.by_log(server.folder / "log", recipe, rules) for server in servers]
    check_replicas(results)
    check_balance(kept, results)
    assert sum(result["rejoined"] for result in results) > 0
    if rules.quorum < 3:
        assert sum(result["refused"] for result in results) > 0


def check_replicas(results: Sequence[dict[str, Any]]) -> None:
    """At equal version all have applied the same."""
    for version in range(1, VERSIONS + 1):
        assert len({r["applied"][version] for r in results if version in r["applied"]}) == 1


def check_balance(servers: Sequence[Kept], results: Sequence[dict[str, Any]]) -> None:
    steps = {rank: range(result["steps"]) for rank, result in enumerate(results)}
    for name in SHAPES:
        total = updates_of(servers, name) + owed_by(servers, name)
        for result in results:
            total += result["push"][name]["residual"].double().reshape(SHAPES[name]) / WORKERS
        torch.testing.assert_close(total, given(name, steps), rtol=1e-5, atol=1e-4)
