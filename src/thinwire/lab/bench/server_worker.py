"""A worker of the server benchmark: steps of many cells, one cell after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.lab.bench.server_allreduce import AllReduce, Group, make_groups
from thinwire.lab.bench.server_cells import ALLREDUCE, ALONE
from thinwire.lab.bench.server_given import Given, GivenNetwork
from thinwire.lab.bench.server_orders import Answer, Attach, Meet, Order, Run
from thinwire.optim.sgd import SGD
from thinwire.spelling import read_recipe
from thinwire.worker.client import Client

LEARNING_RATE = 1e-6


class Exchange(Protocol):
    def step(self) -> None:
        """Exchange the gradients that backward has left, and give their mean to the optimizer."""

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""


class Idle(SGD):
    """Leaves weights as they are, so that a step ends when the mean gradient is there."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        return None


def make_optimizer(net: GivenNetwork, *, counts: bool) -> Optimizer:
    """``counts``: whether its work is a part of a step."""
    kind = SGD if counts else Idle
    return kind(net.parameters(), lr=LEARNING_RATE)


class Alone:
    """Applies its own gradients: what a step costs without an exchange."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def step(self) -> None:
        self._optimizer.step()

    def traffic(self) -> tuple[int, int]:
        return 0, 0


class ThroughServers:
    """Sends gradients to servers while backward goes on."""

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
        self._cells: dict[int, tuple[GivenNetwork, Exchange]] = {}

    def do(self, order: Order) -> Answer:
        if isinstance(order, Run):
            return self._run(order)
        if isinstance(order, Attach):
            return self._attach(order)
        if isinstance(order, Meet):
            return self._meet(order)
        raise ConfigError(f"{type(order).__name__} is nothing for a worker")

    def _meet(self, order: Meet) -> Answer:
        self._groups = make_groups(
            order.rank,
            order.ranks,
            order.store,
            order.sizes,
            deadline_seconds=order.deadline_seconds,
        )
        return Answer()

    def _attach(self, order: Attach) -> Answer:
        given = Given(order.numel, order.backward_ms, order.backward)
        net = GivenNetwork(given, rank=order.rank)
        self._cells[order.cell] = net, self._exchange(net, order)
        return Answer()

    def _exchange(self, net: GivenNetwork, order: Attach) -> Exchange:
        optimizer = make_optimizer(net, counts=order.optimizer)
        if order.way == ALONE:
            return Alone(optimizer)
        if order.way == ALLREDUCE:
            return AllReduce(net, optimizer, self._groups[order.workers], order.workers)
        client = Client(
            order.servers,
            read_recipe(order.way),
            rank=order.rank,
            workers=order.workers,
            insecure=True,
            deadline_seconds=order.deadline_seconds,
        )
        client.attach(net, optimizer)
        return ThroughServers(client)

    def _run(self, order: Run) -> Answer:
        """The first step brings all workers to the same point: it is not timed."""
        net, exchange = self._cells[order.cell]
        _step(net, exchange)
        sent, received = exchange.traffic()
        began, used = time.perf_counter(), time.process_time()
        for _ in range(order.steps):
            _step(net, exchange)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - used
        sent_now, received_now = exchange.traffic()
        return Answer(
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            sent_nbytes=sent_now - sent,
            received_nbytes=received_now - received,
        )


def _step(net: GivenNetwork, exchange: Exchange) -> None:
    net.backward()
    exchange.step()
