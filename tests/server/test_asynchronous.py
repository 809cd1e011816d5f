"""Asynchronous servers: replicas agree at equal version, and nothing is lost, refusals included."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import thinwire as tw
from tests.server.balance import (
    SHAPES,
    WORKERS,
    Kept,
    given,
    gradient,
    owed_by,
    owed_by_clients,
    updates_of,
)
from tests.server.servers import DEADLINE, RunningServer, network, plain_sgd
from thinwire.client.client import Client
from thinwire.recipe import Recipe
from thinwire.server.settings import Rules

VERSIONS = 12


class Worker(threading.Thread):
    """Pushes known gradients, and notes what it applied as each version."""

    def __init__(self, addresses: Sequence[str], recipe: Recipe, rank: int) -> None:
        super().__init__()
        self.rank, self.error = rank, None
        self.net = network()
        self.applied: dict[int, list[Tensor]] = {}
        self.client = Client(
            addresses, recipe, rank=rank, workers=WORKERS, deadline_seconds=DEADLINE
        )
        optimizer = plain_sgd(self.net)
        optimizer.register_step_pre_hook(self._note)
        self.client.attach(self.net, optimizer)

    def _note(self, *_: object) -> None:
        grads = [p.grad.clone() for p in self.net.parameters() if p.grad is not None]
        self.applied[self.client.version] = grads

    def run(self) -> None:
        # Not so many steps: when some are done, the others may be too few for a quorum.
        while self.client.version < VERSIONS:
            for name, p in self.net.named_parameters():
                p.grad = gradient(name, self.client.steps, self.rank)
            self.client.step()


@pytest.mark.parametrize(("quorum", "staleness"), [(1, 100), (2, 100), (1, 0), (3, 0)])
@pytest.mark.parametrize("codec", [tw.OneBit(), tw.TopK(0.05)], ids=repr)
def test_I4_nothing_is_lost_and_replicas_agree(
    codec: tw.OneBit | tw.TopK, quorum: int, staleness: int
) -> None:
    recipe, rules = tw.doublesqueeze(codec), Rules(WORKERS, quorum, staleness)
    with RunningServer(recipe, rules) as first, RunningServer(recipe, rules) as second:
        servers = [first, second]
        workers = [Worker([s.address for s in servers], recipe, rank) for rank in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=DEADLINE)
            assert not worker.is_alive()
        for worker in workers:
            worker.client.close()
            worker.client._joined().pushing.take_back_refused()
        assert first.error is None
        assert second.error is None
    for version in workers[0].applied:
        for worker in workers[1:]:
            if version in worker.applied:
                pairs = zip(workers[0].applied[version], worker.applied[version], strict=True)
                assert all(torch.equal(a, b) for a, b in pairs)
    kept = [Kept.by_service(server.service) for server in servers]
    steps = {rank: range(worker.client.steps) for rank, worker in enumerate(workers)}
    for name in SHAPES:
        total = (
            updates_of(kept, name)
            + owed_by(kept, name)
            + owed_by_clients([worker.client for worker in workers], name)
        )
        torch.testing.assert_close(total, given(name, steps), rtol=1e-5, atol=1e-4)


def test_updates_that_others_pushed_for_count_as_dense_ones() -> None:
    """A worker that pulls more updates than it pushes gradients compresses no less."""
    recipe = tw.doublesqueeze(tw.OneBit())
    with (
        RunningServer(recipe, Rules(2, 1, 8)) as server,
        tw.Client([server.address], recipe, rank=0, workers=2) as slow,
        tw.Client([server.address], recipe, rank=1, workers=2) as quick,
    ):
        nets = {client: network() for client in (slow, quick)}
        for client, net in nets.items():
            client.attach(net, plain_sgd(net))
        for step in range(6):
            push(quick, nets[quick], step, rank=1)
        push(slow, nets[slow], 0, rank=0)
        stats = slow.stats()
    assert stats.dense_pulled_nbytes == stats.version * stats.dense_nbytes
    assert stats.version >= 6
    assert stats.ratio > 20


def push(client: Client, net: torch.nn.Module, step: int, *, rank: int) -> None:
    for name, p in net.named_parameters():
        p.grad = gradient(name, step, rank)
    client.step()
