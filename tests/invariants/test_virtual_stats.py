"""What a virtual cluster says of its bytes is what its steps exchanged, synchronous or not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw

WORKERS, STEPS = 4, 12
NUMEL = 200 * 100 + 200
RECIPE = tw.doublesqueeze(tw.OneBit())


def trained(
    recipe: tw.Recipe = RECIPE, *, quorum: int | None = None, staleness: int | None = None
) -> tuple[tw.VirtualCluster, float, int]:
    """A cluster after some steps, and the bytes that each step said were pushed and pulled."""
    net = nn.Linear(100, 200)
    speeds = None if quorum is None else [1.0, 1.1, 0.9, 0.1]
    cluster = tw.VirtualCluster(
        net,
        tw.optim.SGD(net.parameters(), lr=0.1),
        recipe,
        workers=WORKERS,
        quorum=quorum,
        staleness=staleness,
        speeds=speeds,
    )
    x = torch.randn(WORKERS, 8, 100, generator=torch.Generator().manual_seed(1))

    def loss_of(worker: int) -> Tensor:
        loss: Tensor = net(x[worker]).square().mean()
        return loss

    pushed, pulled = 0.0, 0
    for _ in range(STEPS):
        cluster.step(loss_of)
        assert cluster.last is not None
        pushed += cluster.last.pushed_nbytes
        pulled += cluster.last.pulled_nbytes
    return cluster, pushed, pulled


def test_totals_are_those_of_all_steps() -> None:
    cluster, pushed, pulled = trained()
    stats = cluster.stats()
    assert stats == tw.VirtualStats(
        recipe="doublesqueeze(OneBit())",
        steps=STEPS,
        workers=WORKERS,
        gradients=STEPS * WORKERS,
        refused=0,
        clock=float(STEPS),
        dense_nbytes=4.0 * NUMEL * STEPS,
        dense_pulled_nbytes=4 * NUMEL * STEPS,
        pushed_nbytes=pushed,
        pulled_nbytes=pulled,
    )
    assert 28 < stats.push_ratio < 32
    assert stats.push_ratio == pytest.approx(stats.pull_ratio, rel=0.02)
    assert stats.ratio == pytest.approx(stats.push_ratio, rel=0.02)


def test_a_race_has_as_many_updates_as_versions_and_fewer_gradients_of_a_worker() -> None:
    cluster, pushed, pulled = trained(quorum=1, staleness=1)
    stats = cluster.stats()
    assert stats.refused == cluster.refused > 0
    assert stats.gradients == cluster.evaluations
    assert stats.clock == cluster.clock
    assert stats.dense_nbytes == 4 * NUMEL * cluster.evaluations / WORKERS
    assert stats.dense_pulled_nbytes == 4 * NUMEL * STEPS
    assert (stats.pushed_nbytes, stats.pulled_nbytes) == (pushed, pulled)
    assert 28 < stats.push_ratio < 32
    assert 28 < stats.pull_ratio < 32


def test_dense_is_no_fewer_bytes_however_workers_are_paced() -> None:
    for quorum in (None, 1):
        cluster, _, _ = trained(tw.dense(), quorum=quorum)
        assert cluster.stats().ratio == pytest.approx(1.0, rel=0.01)


def test_it_prints_a_short_table() -> None:
    cluster, _, _ = trained()
    assert str(cluster.stats()).splitlines() == [
        "recipe     doublesqueeze(OneBit())",
        "steps      12 of 4 workers, 48 gradients, 0 of them refused as too old",
        "clock      12.0 simulated seconds",
        "dense      969.6 kB of gradients, 969.6 kB of updates, of one worker",
        "pushed     31.6 kB, 30.6x fewer",
        "pulled     31.5 kB, 30.7x fewer",
    ]


def test_before_the_first_step_there_is_nothing_to_compare() -> None:
    net = nn.Linear(3, 3)
    cluster = tw.VirtualCluster(net, tw.optim.SGD(net.parameters(), lr=0.1), RECIPE, workers=2)
    stats = cluster.stats()
    assert (stats.steps, stats.pushed_nbytes, stats.pulled_nbytes) == (0, 0.0, 0)
    assert str(stats).endswith("pulled     0 B")
