"""Four workers that answer one by one: momentum in every version is too much, delayed it is not."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn

import thinwire as tw
from tests.server.local_workers import Worker
from tests.server.servers import RunningServer
from thinwire.server.settings import Rules

WORKERS, VERSIONS, EVERY = 4, 160, 8


def examples(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Inputs and their classes, by a network of two layers."""
    weights = torch.randn(20, 45, generator=torch.Generator().manual_seed(99))
    x = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    return x, (torch.tanh(x @ weights[:, :40] / 4) @ weights[:, 40:].repeat(2, 1)).argmax(1)


def loss_of(net: nn.Module, seed: int, count: int) -> Tensor:
    x, classes = examples(seed, count)
    return nn.functional.cross_entropy(net(x), classes)


def train(workers: list[Worker]) -> float:
    """In turns, so that pushes arrive in the same order each time. Returns the loss of the last
    global weights on other data."""
    optimizers = [torch.optim.SGD(worker.net.parameters(), lr=0.05) for worker in workers]
    for worker, optimizer in zip(workers, optimizers, strict=True):
        worker.client.attach(worker.net, optimizer)
    for step in range(VERSIONS // WORKERS * EVERY):
        for worker, optimizer in zip(workers, optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(worker.net, 1000 * step + worker.rank, 32).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    last = workers[-1]
    with last.client.global_weights(), torch.no_grad():
        return float(loss_of(last.net, 123_456_789, 4000))


def trained(*, delay: int) -> float:
    recipe = tw.diloco(tw.Float32(), lr=0.4, momentum=0.9, delay=delay)
    with RunningServer(recipe, Rules(WORKERS, 1, 1 << 20)) as server, ExitStack() as clients:
        workers = [
            Worker([server.address], recipe, rank, workers=WORKERS, every=EVERY)
            for rank in range(WORKERS)
        ]
        for worker in workers:
            clients.enter_context(worker.client)
        return train(workers)


def test_delayed_momentum_trains_where_momentum_in_every_version_does_not() -> None:
    """Measured: 0.44 with the delay, 0.54 to 0.61 without."""
    delayed, plain = trained(delay=WORKERS), trained(delay=1)
    assert delayed < 0.5
    assert delayed < plain
