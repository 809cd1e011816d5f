"""One slow worker among four, through a real server: asynchronously nobody waits for it.

Time is real. Gradients are cheap here; sleeping stands for the work of computing them.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from itertools import repeat

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import thinwire as tw
from tests.server.servers import DEADLINE, RunningServer, plain_sgd
from thinwire.client.client import Client
from thinwire.recipe import Recipe
from thinwire.server.settings import Rules

WORKERS, EVALUATIONS = 4, 120
SECONDS = (0.03, 0.03, 0.03, 0.3)
"""What a gradient takes each worker: far more than what a step takes on a busy machine."""

INPUTS, CLASSES = 20, 5
TEACHER = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(9))


def small_network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(INPUTS, 50), nn.Tanh(), nn.Linear(50, CLASSES))


def loss_on(net: nn.Module, rows: int, seed: int) -> Tensor:
    x = torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(seed))
    return functional.cross_entropy(net(x), (x @ TEACHER).argmax(1))


class Tickets:
    """One for each gradient that is to be made. Whoever is fast takes more of them."""

    def __init__(self, count: int) -> None:
        self._left = iter(range(count))
        self._lock = threading.Lock()

    def take(self) -> int | None:
        with self._lock:
            return next(self._left, None)


class Worker(threading.Thread):
    """Makes a gradient, slowly, for each ticket that it gets."""

    def __init__(self, address: str, recipe: Recipe, rank: int, tickets: Tickets) -> None:
        super().__init__()
        self.net = small_network()
        self._rank, self._tickets = rank, tickets
        self.client = Client(
            [address], recipe, rank=rank, workers=WORKERS, deadline_seconds=DEADLINE
        )
        optimizer = plain_sgd(self.net)
        optimizer.param_groups[0]["lr"] = 0.3
        self.client.attach(self.net, optimizer)

    def run(self) -> None:
        while (ticket := self._tickets.take()) is not None:
            self.net.zero_grad()
            loss_on(self.net, 16, seed=ticket).backward()  # type: ignore[no-untyped-call]
            time.sleep(SECONDS[self._rank])
            self.client.step()


@dataclass(frozen=True)
class Outcome:
    seconds: float
    evaluations: list[int]
    version: int
    loss: float


def train(recipe: Recipe, rules: Rules, tickets: list[Tickets]) -> Outcome:
    """Until nobody has a ticket any more; the loss is held-out, of the newest weights."""
    with RunningServer(recipe, rules) as server:
        workers = [Worker(server.address, recipe, i, tickets[i]) for i in range(WORKERS)]
        start = time.monotonic()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=DEADLINE)
            assert not worker.is_alive()
        seconds = time.monotonic() - start
        for worker in workers:
            worker.client.close()
        assert server.error is None
    newest = max(workers, key=lambda worker: worker.client.version)
    with torch.no_grad():
        loss = float(loss_on(newest.net, 2000, seed=10_000))
    evaluations = [worker.client.steps for worker in workers]
    return Outcome(seconds, evaluations, newest.client.version, loss)


@pytest.mark.parametrize(
    "recipe",
    [tw.doublesqueeze(tw.OneBit()), tw.doublesqueeze(tw.TopK(0.1))],
    ids=["onebit", "topk"],
)
def test_as_many_gradients_in_less_than_half_the_time(recipe: Recipe) -> None:
    """To the same loss, within 5 %: the order of arrival is left to chance here.

    Synchronously each worker makes a quarter of the gradients, or the last ones would be too few
    for a quorum. Asynchronously one push makes a version, and none is too old.
    """
    share = EVALUATIONS // WORKERS
    together = train(recipe, Rules.synchronous(WORKERS), [Tickets(share) for _ in range(WORKERS)])
    shared = Tickets(EVALUATIONS)
    apart = train(recipe, Rules(WORKERS, 1, EVALUATIONS), list(repeat(shared, WORKERS)))
    print(together, apart)
    assert sum(apart.evaluations) == sum(together.evaluations) == EVALUATIONS
    assert together.version == share
    # A worker goes on with any newer version: at the end its own push may still be on its way.
    assert EVALUATIONS - WORKERS <= apart.version <= EVALUATIONS
    assert 2 * apart.seconds <= together.seconds
    assert together.loss < 0.7  # it began at 1.6
    assert apart.loss <= 1.05 * together.loss
