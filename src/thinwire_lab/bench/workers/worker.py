"""``WorkerRole``: a worker of the server benchmark; it makes steps of one cell after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from torch.optim.optimizer import Optimizer

from thinwire.client.client import Client
from thinwire.errors import ConfigError
from thinwire.optim.sgd import SGD
from thinwire.recipe_text import read_recipe
from thinwire_lab.bench.server.allreduce import AllReduce, Group, make_groups
from thinwire_lab.bench.server.cells import ALLREDUCE, ALONE
from thinwire_lab.bench.server.synthetic import SyntheticModel, SyntheticNetwork
from thinwire_lab.bench.workers.keys import worker_keys
from thinwire_lab.bench.workers.messages import Attach, Join, Reply, Request, Run

LEARNING_RATE = 1e-6


class Exchange(Protocol):
    def step(self) -> None:
        """Exchange the gradients of this backward pass, and apply their mean."""

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""


class Idle(SGD):
    """Leaves weights unchanged, so that a step ends when the mean gradient arrives."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        return None


def make_optimizer(net: SyntheticNetwork, *, counts: bool) -> Optimizer:
    """``counts``: whether a step includes the optimizer."""
    kind = SGD if counts else Idle
    return kind(net.parameters(), lr=LEARNING_RATE)


class Alone:
    """Applies its own gradients, to measure a step without an exchange."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def step(self) -> None:
        self._optimizer.step()

    def traffic(self) -> tuple[int, int]:
        return 0, 0


class ThroughServers:
    """Pushes gradients to servers during backward."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def step(self) -> None:
        self._client.step()

    def traffic(self) -> tuple[int, int]:
        stats = self._client.stats()
        return stats.sent_nbytes, stats.received_nbytes


class WorkerRole:
    """One network and one exchange for each cell that it takes part in."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}
        self._cells: dict[int, tuple[SyntheticNetwork, Exchange]] = {}

    def do(self, request: Request) -> Reply:
        if isinstance(request, Run):
            return self._run(request)
        if isinstance(request, Attach):
            return self._attach(request)
        if isinstance(request, Join):
            return self._join(request)
        raise ConfigError(f"{type(request).__name__} is not a request for a worker")

    def _join(self, request: Join) -> Reply:
        self._groups = make_groups(
            request.rank,
            request.ranks,
            request.store,
            request.sizes,
            deadline_seconds=request.deadline_seconds,
        )
        return Reply()

    def _attach(self, request: Attach) -> Reply:
        model = SyntheticModel(request.numel, request.backward_ms, request.backward)
        net = SyntheticNetwork(model, rank=request.rank)
        self._cells[request.cell] = net, self._exchange(net, request)
        return Reply()

    def _exchange(self, net: SyntheticNetwork, request: Attach) -> Exchange:
        optimizer = make_optimizer(net, counts=request.optimizer)
        if request.way == ALONE:
            return Alone(optimizer)
        if request.way == ALLREDUCE:
            return AllReduce(net, optimizer, self._groups[request.workers], request.workers)
        client = Client(
            request.servers,
            read_recipe(request.way),
            rank=request.rank,
            workers=request.workers,
            keys=worker_keys(request.keys),
            insecure=True,
            deadline_seconds=request.deadline_seconds,
        )
        client.attach(net, optimizer)
        return ThroughServers(client)

    def _run(self, request: Run) -> Reply:
        """The first step synchronizes the workers, and is not timed."""
        net, exchange = self._cells[request.cell]
        _step(net, exchange)
        sent, received = exchange.traffic()
        began, used = time.perf_counter(), time.process_time()
        for _ in range(request.steps):
            _step(net, exchange)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - used
        sent_now, received_now = exchange.traffic()
        return Reply(
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            sent_nbytes=sent_now - sent,
            received_nbytes=received_now - received,
        )


def _step(net: SyntheticNetwork, exchange: Exchange) -> None:
    net.backward()
    exchange.step()
