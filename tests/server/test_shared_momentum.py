"""Servers and recipes that send the optimizer's momentum: exact, restarted, replayed, refused."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.optimizer import Optimizer

import thinwire as tw
from tests.server.servers import (
    MakeOptimizer,
    RunningServer,
    loss_of,
    network,
    train,
    virtual,
    weights,
)
from thinwire.gradient.pieces import Key, Piece
from thinwire.recipe import Recipe
from thinwire.server.aggregate import Aggregate
from thinwire.server.settings import Rules
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.messages import Push

STEPS = 10


def momentum_sgd(net: nn.Module) -> Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def adamw(net: nn.Module) -> Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=3e-3)


CASES: dict[str, tuple[Recipe, MakeOptimizer]] = {
    "1 bit": (tw.momentum_sgd(tw.OneBit()), momentum_sgd),
    "adam": (tw.adam(first=2, most_gap=4), adamw),
}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_servers_compute_what_the_virtual_cluster_computes(name: str, servers: int) -> None:
    recipe, optimizer = CASES[name]
    with ExitStack() as stack:
        running = [
            stack.enter_context(RunningServer(recipe, Rules.synchronous(3))) for _ in range(servers)
        ]
        addresses = [server.address for server in running]
        found = train(addresses, recipe, 3, STEPS, optimizer=optimizer)
    assert found == [virtual(recipe, 3, STEPS, optimizer=optimizer)] * 3


@pytest.mark.parametrize("name", CASES)
def test_a_restart_is_exact_and_the_log_replays_to_the_same_weights(
    name: str, tmp_path: Path
) -> None:
    recipe, optimizer = CASES[name]
    lock, restarted = threading.Lock(), set[int]()
    with RunningServer(recipe, Rules.synchronous(2), log_dir=tmp_path) as server:

        def restart(rank: int, step: int) -> None:
            with lock:
                if step in (1, 4, 7) and step not in restarted:
                    restarted.add(step)
                    server.stop()
                    server.start()

        found = train([server.address], recipe, 2, STEPS, at_step=restart, optimizer=optimizer)
    expected = virtual(recipe, 2, STEPS, optimizer=optimizer)
    assert found == [expected] * 2
    net = network()
    assert tw.replay_log(net, optimizer(net), [tmp_path]) == STEPS
    assert weights(net) == expected


@pytest.mark.parametrize("name", CASES)
def test_a_momentum_that_workers_do_not_share_is_refused(name: str, tmp_path: Path) -> None:
    """Asynchronous pushes are computed on different versions, each with a momentum of its own."""
    recipe, optimizer = CASES[name]
    with pytest.raises(tw.ConfigError, match=r"only at the same version.*tw\.dgc"):
        tw.Server("tcp://127.0.0.1:0", workers=2, recipe=recipe, quorum=1, staleness=1)
    net = network()
    with pytest.raises(tw.ConfigError, match="only at the same version"):
        tw.VirtualCluster(net, optimizer(net), recipe, workers=2, quorum=1, staleness=1)


def test_momentum_stays_when_a_worker_is_lost() -> None:
    """The mean is over those who pushed: with a part missing the momentum would shrink."""
    piece = Piece.whole(Key("w", (2, 2)))
    recipe = tw.Recipe(push_feedback=tw.chain(tw.SGDMomentum(), tw.Residual()))
    aggregate = Aggregate(recipe, {0: piece}, Rules.synchronous(2))
    aggregate.leave(1)
    ones = EncodedBytes(tw.Float32.wire_id, 4, torch.ones(4).numpy().tobytes())
    (update,) = aggregate.count(0, 0, Push(0, 0.1, (Entry(0, ones),)))
    assert bytes(update.entries[0].encoded.payload) == torch.ones(4).numpy().tobytes()


def test_a_client_without_a_recipe_takes_the_one_that_fits_its_optimizer() -> None:
    recipe = tw.recipe_for(momentum_sgd(network()))
    with RunningServer(recipe, Rules.synchronous(1)) as server:
        net = network()
        with tw.Client([server.address], rank=0, workers=1) as client:
            client.attach(net, momentum_sgd(net))
            assert client.stats().recipe == "momentum_sgd()"


def test_early_forward_applies_momentum_group_by_group() -> None:
    recipe, optimizer = CASES["adam"]
    with RunningServer(recipe, Rules.synchronous(1)) as server:
        net = network()
        with tw.Client([server.address], recipe, rank=0, workers=1, early_forward=True) as client:
            client.attach(net, optimizer(net))
            for step in range(STEPS):
                net.zero_grad()
                loss_of(net, step, 0).backward()  # type: ignore[no-untyped-call]
                client.step()
        found = weights(net)
    assert found == virtual(recipe, 1, STEPS, optimizer=optimizer)
