"""What compression keeps in memory for each parameter, as docs/performance.md says it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

import thinwire as tw
from tests.distributed import launch
from tests.distributed.training import backward
from tests.slow import first
from thinwire.feedback.momentum import shared_momentum
from thinwire.optim.takeover import momentum_of
from thinwire.recipe import Recipe

SIDE, LAYERS = 1024, 16
NUMEL = LAYERS * SIDE * (SIDE + 1)
SLACK_NBYTES = 20_000_000
"""Threads, code that is loaded at the first step, and buffers for payloads."""

RECIPES: dict[str, tuple[Recipe, float]] = {
    "dense": (tw.dense(), 2),
    "1 bit": (tw.doublesqueeze(tw.OneBit()), 6),
    "momentum": (tw.momentum_sgd(), 6),
    "adam": (tw.adam(first=1, most_gap=2), 14.2),
    "dgc": (tw.dgc(0.001, warmup_steps=0), 8),
    "dgc, warm-up": (tw.dgc(0.001), 14),
    "top-k": (tw.doublesqueeze(tw.TopK(0.001)), 6),
    "dither": (tw.clan(tw.Dither(4)), 2),
}
"""With the bytes per parameter that two ranks keep, beside weights, gradients and the optimizer: 4
as workers, and 2 as the servers of their share. Full steps of Adam need 8 more for payloads,
its momentum as bits 0.2, and warm-up, which keeps 25 % at first, 6."""


def resident_nbytes() -> int:
    """What this process alone has in memory."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def optimizer_for(net: nn.Module, recipe: Recipe) -> Optimizer:
    """One that fits the recipe, with its state: gradients are there, and it has stepped."""
    optimizer: Optimizer = torch.optim.AdamW(net.parameters(), lr=0.0)
    if shared_momentum(recipe.push_feedback) == tw.SGDMomentum():
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9)
    elif not recipe.shares_momentum:
        momentum = 0.9 if momentum_of(recipe) else 0.0
        return torch.optim.SGD(net.parameters(), lr=0.01, momentum=momentum)
    optimizer.step()
    return optimizer


def growth(recipe: Recipe) -> float:
    """Of one rank, from plain DDP that has trained to our own."""
    torch.set_num_threads(1)
    net = nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(LAYERS)))
    data = torch.randn(2, SIDE)
    model = DistributedDataParallel(net)
    backward(model(data).sum())
    del model
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    with model.no_sync():
        backward(model(data).sum())
    optimizer = optimizer_for(net, recipe)
    gc.collect()
    before = resident_nbytes()
    with tw.compress_ddp(model, recipe, optimizer=optimizer):
        for _ in range(4):
            backward(model(data).sum())
            optimizer.step()
        gc.collect()
        return resident_nbytes() - before


def growth_without_ddp(recipe: Recipe) -> float:
    """Of one rank, from a network that has trained alone to one that exchanges its gradients."""
    torch.set_num_threads(1)
    net = nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(LAYERS)))
    data = torch.randn(2, SIDE)
    backward(net(data).sum())
    optimizer = optimizer_for(net, recipe)
    gc.collect()
    before = resident_nbytes()
    with tw.compress_module(net, recipe, optimizer=optimizer):
        for _ in range(4):
            optimizer.zero_grad()
            backward(net(data).sum())
            optimizer.step()
        gc.collect()
        return resident_nbytes() - before


@pytest.fixture
def frugal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New processes whose malloc gives back what is freed: DDP makes its buckets twice."""
    launch.end()
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1000000")
    yield
    launch.end()


GROWTHS = {"with DDP": growth, "without": growth_without_ddp}


@pytest.mark.usefixtures("frugal")
@pytest.mark.parametrize("way", GROWTHS)
@pytest.mark.parametrize(
    "name",
    first(["adam", "dgc", "dgc, warm-up", "dense", "1 bit", "momentum", "top-k", "dither"]),
)
def test_a_recipe_keeps_no_more_than_is_said(name: str, way: str) -> None:
    recipe, stated = RECIPES[name]
    for found in launch.run(GROWTHS[way], recipe, ranks=2, keep=False):
        print(f"{name}: {found / NUMEL:.2f} bytes per parameter, {stated:g} are stated")
        assert found <= stated * NUMEL + SLACK_NBYTES
