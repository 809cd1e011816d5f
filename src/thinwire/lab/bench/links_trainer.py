"""A host of the benchmark of links: steps of many cases, one case after the other."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path

from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.lab.bench.hosts import INTERFACE
from thinwire.lab.bench.links_cases import CASES
from thinwire.lab.bench.links_ddp import Wrapped, wait_for_all, wrap
from thinwire.lab.bench.links_models import LINEAR, Computed, Shaped, Workload, shapes_of
from thinwire.lab.bench.server_allreduce import make_groups
from thinwire.lab.bench.server_orders import Answer, Meet, Order, Prepare, Record, Run
from thinwire.optim.sgd import SGD
from thinwire.watch.trace import Trace, trace

LEARNING_RATE = 1e-6

_NETWORK = Path("/proc/net/dev")


class Training:
    """One case on this host."""

    def __init__(
        self, workload: Workload, wrapped: Wrapped, optimizer: Optimizer, *, applies: bool
    ) -> None:
        """``applies``: whether a step ends with that of the optimizer, or with backward."""
        self._workload, self._optimizer, self._applies = workload, optimizer, applies
        self._model, self.compression = wrapped.model, wrapped.compression

    def step(self, tracing: Trace | None = None) -> None:
        with _span(tracing, "forward"):
            loss = self._workload.loss(self._model)
        with _span(tracing, "backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        if self._applies:
            with _span(tracing, "optimizer"):
                self._optimizer.step()
        self._optimizer.zero_grad()


def _span(tracing: Trace | None, name: str) -> AbstractContextManager[object]:
    return nullcontext() if tracing is None else tracing.span(name)


class TrainerRole:
    """One network for each case, all with the same weights."""

    def __init__(self) -> None:
        self._rank = 0
        self._workload: Workload | None = None
        self._cells: dict[int, Training] = {}

    def do(self, order: Order) -> Answer:
        if isinstance(order, Run):
            return self._run(order)
        if isinstance(order, Record):
            return self._record(order)
        if isinstance(order, Prepare):
            return self._prepare(order)
        if isinstance(order, Meet):
            return self._meet(order)
        raise ConfigError(f"{type(order).__name__} is nothing for a trainer")

    def _meet(self, order: Meet) -> Answer:
        make_groups(
            order.rank, order.ranks, order.store, (), deadline_seconds=order.deadline_seconds
        )
        self._rank = order.rank
        return Answer()

    def _prepare(self, order: Prepare) -> Answer:
        if self._workload is None:
            self._workload = _workload(order)
        net = self._workload.network()
        optimizer = SGD(net.parameters(), lr=LEARNING_RATE)
        wrapped = wrap(
            CASES[order.case],
            net,
            optimizer,
            bucket_mb=order.bucket_mb,
            servers=order.servers,
            deadline_seconds=order.deadline_seconds,
        )
        self._cells[order.cell] = Training(
            self._workload, wrapped, optimizer, applies=order.optimizer
        )
        return Answer()

    def _run(self, order: Run) -> Answer:
        """The first step, which warms caches and connections, does not count."""
        training = self._cells[order.cell]
        wait_for_all()
        training.step()
        wait_for_all()
        sent, received = traffic()
        used, clock = time.process_time(), [time.perf_counter()]
        for _ in range(order.steps):
            training.step()
            clock.append(time.perf_counter())
        used = time.process_time() - used
        wait_for_all()  # or what is still on its way would not be counted
        sent_now, received_now = traffic()
        return Answer(
            cpu_seconds=used,
            sent_nbytes=sent_now - sent,
            received_nbytes=received_now - received,
            step_seconds=[b - a for a, b in pairwise(clock)],
        )

    def _record(self, order: Record) -> Answer:
        training = self._cells[order.cell]
        wait_for_all()
        watched = [training.compression] if training.compression is not None else []
        name = f"host {self._rank}"
        with (
            trace(order.file, *watched, name=name, process=self._rank) as tracing,
            tracing.span(order.title),
        ):
            for number in range(order.steps):
                with tracing.span("step", number):
                    training.step(tracing)
        return Answer()


def _workload(order: Prepare) -> Workload:
    if order.model == LINEAR:
        return Computed(order.width, order.batch, rank=order.rank)
    shapes = shapes_of(order.model, order.width)
    return Shaped(shapes, order.backward_ms / 1e3, order.backward, rank=order.rank)


def traffic(network: Path = _NETWORK, interface: str = INTERFACE) -> tuple[int, int]:
    """Bytes that this host's interface has sent and received: payloads, TCP, IP and Ethernet."""
    for line in network.read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            words = numbers.split()
            return int(words[8]), int(words[0])
    raise ConfigError(f"{network} has no interface {interface}")
