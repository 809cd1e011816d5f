"""Servers and workers in threads of one process, joined by any transport."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

import thinwire as tw
from thinwire.client.client import Client
from thinwire.recipe import Recipe
from thinwire.server.journal import Journal
from thinwire.server.log.log import Log
from thinwire.server.service import Service
from thinwire.server.settings import DEFAULT_SETTINGS, Rules, ServiceSettings
from thinwire.transport import tcp

DEADLINE = 60.0
_runs = itertools.count(7)


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 5))


def loss_of(net: nn.Module, step: int, rank: int) -> Tensor:
    x = torch.randn(16, 20, generator=torch.Generator().manual_seed(1000 * step + rank))
    found = net(x.to(next(net.parameters()).dtype)).float()
    return nn.functional.cross_entropy(found, (x[:, 0] > 0).long())


def weights(net: nn.Module) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in net.parameters()]


def plain_sgd(net: nn.Module) -> Optimizer:
    return tw.optim.SGD(net.parameters(), lr=0.05)


MakeOptimizer = Callable[[nn.Module], Optimizer]


def virtual(
    recipe: Recipe, workers: int, steps: int, *, optimizer: MakeOptimizer = plain_sgd
) -> list[bytes]:
    net = network()
    cluster = tw.VirtualCluster(net, optimizer(net), recipe, workers=workers)
    for step in range(steps):
        cluster.step(partial(loss_of, net, step))
    return weights(net)


class RunningServer(AbstractContextManager["RunningServer"]):
    """A server in a thread, which can be stopped without a word and started again."""

    def __init__(
        self,
        recipe: Recipe,
        rules: Rules,
        *,
        log_dir: Path | None = None,
        settings: ServiceSettings = DEFAULT_SETTINGS,
    ) -> None:
        self._recipe, self._rules, self._log_dir = recipe, rules, log_dir
        self._settings = settings
        self.address = "tcp://127.0.0.1:0"
        self.error: BaseException | None = None
        self.start()

    def start(self) -> None:
        self._stop = threading.Event()
        self._listener = tcp.listen(self.address)
        self.address = self._listener.address
        log, recovery = None, None
        if self._log_dir is not None:
            log, recovery = Log.open(self._log_dir, new_run=next(_runs))
        self._log = log
        self.service = Service(
            self._listener,
            self._recipe,
            self._rules,
            settings=self._settings,
            journal=Journal(log),
            recovery=recovery,
        )
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=DEADLINE)
        self._listener.close()
        if self._log is not None:
            self._log.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _serve(self) -> None:
        try:
            self.service.serve(stop=self._stop.is_set, tick_seconds=0.02)
        except BaseException as error:
            self.error = error


def train(
    addresses: list[str],
    recipe: Recipe,
    workers: int,
    steps: int,
    *,
    at_step: Callable[[int, int], None] = lambda rank, step: None,
    delay: Callable[[int], float] = lambda rank: 0.0,
    optimizer: MakeOptimizer = plain_sgd,
) -> list[list[bytes]]:
    """The last weights of each worker; workers are threads. ``at_step`` is called before each."""
    results: list[list[bytes] | BaseException] = [[] for _ in range(workers)]
    nets = [network() for _ in range(workers)]  # not in threads: they share a random generator

    def work(rank: int) -> None:
        try:
            net = nets[rank]
            client = Client(
                addresses, recipe, rank=rank, workers=workers, deadline_seconds=DEADLINE
            )
            with client:
                client.attach(net, optimizer(net))
                for step in range(steps):
                    at_step(rank, step)
                    net.zero_grad()
                    loss_of(net, step, rank).backward()  # type: ignore[no-untyped-call]
                    client.step()
            results[rank] = weights(net)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=2 * DEADLINE)
    found: list[list[bytes]] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found
