"""``TrainerRole``: a host of the benchmark of links; it makes steps of one case after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path

from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.watch.trace import Trace, trace
from thinwire_lab.bench.hosts import INTERFACE
from thinwire_lab.bench.links.cases import CASES, LinkCase
from thinwire_lab.bench.links.ddp import Wrapped, optimizer_for, wait_for_all, wrap
from thinwire_lab.bench.links.models import LINEAR, Computed, Shaped, Workload, shapes_of
from thinwire_lab.bench.links.sharded import shard
from thinwire_lab.bench.server.allreduce import make_groups
from thinwire_lab.bench.workers.messages import Join, Prepare, Record, Reply, Request, Run

_NETWORK = Path("/proc/net/dev")


class Training:
    """One case on this host."""

    def __init__(
        self,
        workload: Workload,
        case: LinkCase,
        wrapped: Wrapped,
        optimizer: Optimizer,
        *,
        applies: bool,
    ) -> None:
        """``applies``: whether a step ends with that of the optimizer, or with backward."""
        self._workload, self._case, self._optimizer = workload, case, optimizer
        self._applies = applies or case.rounds is not None
        self._model, self._after_step = wrapped.model, wrapped.after_step
        self.compression = wrapped.compression
        self._steps = 0

    def warm_up(self) -> None:
        """Make a step that is not timed, for caches and connections. It always ends with that of
        the optimizer, so that momentum is what training has, and not zero for ever.

        With rounds make those after which no exchange is under way: so each round that is timed has
        a whole one.
        """
        rounds = self._case.rounds
        if rounds is None:
            self._step(None, applies=True)
            return
        while (self._steps - rounds.delay) % self._case.period:
            self._step(None, applies=True)

    def step(self, tracing: Trace | None = None) -> None:
        self._step(tracing, applies=self._applies)

    def _step(self, tracing: Trace | None, *, applies: bool) -> None:
        with _span(tracing, "forward"):
            loss = self._workload.loss(self._model)
        with _span(tracing, "backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        if applies:
            with _span(tracing, "optimizer"):
                self._optimizer.step()
        if self._after_step is not None:
            self._after_step()
        self._optimizer.zero_grad()
        self._steps += 1


def _span(tracing: Trace | None, name: str) -> AbstractContextManager[object]:
    return nullcontext() if tracing is None else tracing.span(name)


class TrainerRole:
    """One network for each case, all with the same weights."""

    def __init__(self) -> None:
        self._rank = 0
        self._workload: Workload | None = None
        self._cells: dict[int, Training] = {}

    def do(self, request: Request) -> Reply:
        if isinstance(request, Run):
            return self._run(request)
        if isinstance(request, Record):
            return self._record(request)
        if isinstance(request, Prepare):
            return self._prepare(request)
        if isinstance(request, Join):
            return self._join(request)
        raise ConfigError(f"{type(request).__name__} is not a request for a trainer")

    def _join(self, request: Join) -> Reply:
        make_groups(
            request.rank,
            request.ranks,
            request.store,
            (),
            deadline_seconds=request.deadline_seconds,
        )
        self._rank = request.rank
        return Reply()

    def _prepare(self, request: Prepare) -> Reply:
        if self._workload is None:
            self._workload = _workload(request)
        net = self._workload.network()
        case = CASES[request.case]
        if case.sharded:
            shard(case, net, request.shards)
        optimizer = optimizer_for(case, net, applies=request.optimizer)
        wrapped = wrap(
            case,
            net,
            optimizer,
            bucket_mb=request.bucket_mb,
            servers=request.servers,
            shards=request.shards,
            deadline_seconds=request.deadline_seconds,
        )
        self._cells[request.cell] = Training(
            self._workload, case, wrapped, optimizer, applies=request.optimizer
        )
        return Reply()

    def _run(self, request: Run) -> Reply:
        training = self._cells[request.cell]
        wait_for_all()
        training.warm_up()
        return measured(training.step, request.steps)

    def _record(self, request: Record) -> Reply:
        training = self._cells[request.cell]
        wait_for_all()
        watched = [training.compression] if training.compression is not None else []
        name = f"host {self._rank}"
        with (
            trace(request.file, *watched, name=name, process=self._rank) as tracing,
            tracing.span(request.title),
        ):
            for number in range(request.steps):
                with tracing.span("step", number):
                    training.step(tracing)
        return Reply()


def _workload(request: Prepare) -> Workload:
    if request.model == LINEAR:
        return Computed(request.width, request.batch, rank=request.rank)
    shapes = shapes_of(request.model, request.width)
    return Shaped(shapes, request.backward_ms / 1e3, request.backward, rank=request.rank)


def measured(step: Callable[[], object], steps: int) -> Reply:
    """Times, bytes and processor time of steps that all hosts begin together."""
    wait_for_all()
    sent, received = traffic()
    used, clock = time.process_time(), [time.perf_counter()]
    for _ in range(steps):
        step()
        clock.append(time.perf_counter())
    used = time.process_time() - used
    wait_for_all()  # or bytes that are still in flight would not be counted
    sent_now, received_now = traffic()
    return Reply(
        cpu_seconds=used,
        sent_nbytes=sent_now - sent,
        received_nbytes=received_now - received,
        step_seconds=[b - a for a, b in pairwise(clock)],
    )


def traffic(network: Path = _NETWORK, interface: str = INTERFACE) -> tuple[int, int]:
    """Bytes that this host's interface has sent and received: payloads, TCP, IP and Ethernet."""
    for line in network.read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            words = numbers.split()
            return int(words[8]), int(words[0])
    raise ConfigError(f"{network} has no interface {interface}")
