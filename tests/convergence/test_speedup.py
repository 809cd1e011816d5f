"""More workers need fewer steps (S6), and none waits for a slow one. Seconds, in one process."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import thinwire as tw
from thinwire.recipe import Recipe

RECIPES = [tw.dense(), tw.doublesqueeze(tw.OneBit()), tw.doublesqueeze(tw.TopK(0.1))]
NAMES = ["dense", "onebit", "topk"]

NUMEL, NOISE = 256, 6.0
RATE = 0.0025
"""Of one worker: what its noise leaves of the loss, RATE * NOISE ** 2 / 2 = 4.5 %, is just enough
below the target."""
TARGET = 0.1


def steps_to_target(recipe: Recipe, *, workers: int, rate: float, most: int) -> int | None:
    """Steps until half the square of the weights, seen through noise, is a tenth of what it was."""
    net = nn.Linear(NUMEL, 1, bias=False)
    net.weight.data.fill_(1.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    cluster = tw.VirtualCluster(net, optimizer, recipe, workers=workers)
    chance = torch.Generator().manual_seed(0)

    def loss_of(worker: int) -> Tensor:
        noise = NOISE * torch.randn(1, NUMEL, generator=chance)
        return (net.weight.square() / 2 + noise * net.weight).sum()

    for step in range(1, most + 1):
        cluster.step(loss_of)
        if net.weight.detach().square().mean() <= TARGET:
            return step
    return None


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_S6_steps_to_target_fall_as_one_over_the_number_of_workers(recipe: Recipe) -> None:
    """With n workers, steps times n are within a tenth of the steps of one.

    The noise of a mean of n has a variance n times smaller, so n workers bear an n times larger
    rate at the same distance from the optimum, and that is n times fewer steps. What is left out is
    of the order of the rate times the steps that an element waits to be sent: a few percent here.
    """
    steps = {}
    for n in (1, 2, 4, 8):
        steps[n] = steps_to_target(recipe, workers=n, rate=n * RATE, most=2000)
    print(steps)
    assert steps[1] is not None
    for n, found in steps.items():
        assert found is not None
        assert 0.9 * steps[1] <= n * found <= 1.1 * steps[1]


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_S6_it_is_the_workers_that_do_it(recipe: Recipe) -> None:
    """One worker with the rate of eight never gets there: the test above is no test of rates."""
    assert steps_to_target(recipe, workers=1, rate=8 * RATE, most=1000) is None


INPUTS, CLASSES = 20, 5
TEACHER = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(9))


def batch(rows: int, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, INPUTS, generator=chance)
    return x, (x @ TEACHER).argmax(1)


@dataclass(frozen=True)
class Outcome:
    seconds: float
    evaluations: int
    loss: float


def train(recipe: Recipe, *, quorum: int, evaluations: int) -> Outcome:
    """Four workers, one of them ten times slower. Time is simulated; the loss is held-out."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(INPUTS, 50), nn.Tanh(), nn.Linear(50, CLASSES))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    cluster = tw.VirtualCluster(
        net, optimizer, recipe, workers=4, quorum=quorum, speeds=(1.0, 1.0, 1.0, 0.1)
    )
    chance = torch.Generator().manual_seed(0)
    while cluster.evaluations < evaluations:
        cluster.step(lambda worker: loss_on(net, *batch(16, chance)))
    with torch.no_grad():
        held_out = loss_on(net, *batch(2000, torch.Generator().manual_seed(8)))
    return Outcome(cluster.clock, cluster.evaluations, float(held_out))


def loss_on(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(net(x), y)


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_one_slow_worker_does_not_hold_up_the_others(recipe: Recipe) -> None:
    """As many gradients, in less than half the time, to the same loss, within 2 %."""
    run = partial(train, recipe, evaluations=600)
    together, apart = run(quorum=4), run(quorum=1)
    print(together, apart)
    assert apart.evaluations == together.evaluations
    assert 2 * apart.seconds <= together.seconds
    assert together.loss < 0.3  # it began at 1.6
    assert apart.loss <= 1.02 * together.loss
