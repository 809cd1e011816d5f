"""``Pace``: how workers of a virtual cluster get to the next version, in lockstep or in a race.

In a race a worker does what ``Client.step`` does: it pushes the gradient of the version that it
has, waits until there is a newer one, and computes on the newest. The order of arrival comes from a
seed, so an asynchronous run repeats exactly.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from thinwire.checks import check_positive
from thinwire.errors import ConfigError
from thinwire.virtual.exchange import Exchanged, VirtualExchange
from thinwire.virtual.replica import Evaluation, LossOf, Replica
from thinwire.virtual.server import Answer, VirtualServer


class Timetable:
    """When gradients arrive, in simulated time. Worker i takes 1 / ``speeds[i]`` seconds for one,
    more or less by up to the fraction ``jitter`` of that. Messages take no time."""

    def __init__(self, speeds: Sequence[float], *, jitter: float, seed: int) -> None:
        for speed in speeds:
            check_positive(speed, owner="VirtualCluster", field="every one of speeds")
        if not 0.0 <= jitter < 1.0:
            raise ConfigError(f"VirtualCluster: jitter must be in [0, 1), got {jitter}")
        self._speeds, self._jitter = tuple(speeds), jitter
        self._chance = torch.Generator().manual_seed(seed)
        self._ends: list[tuple[float, int]] = []
        self.now = 0.0

    def begin(self, worker: int) -> None:
        """Let a worker begin a gradient now."""
        chance = 2.0 * torch.rand((), dtype=torch.float64, generator=self._chance).item() - 1.0
        seconds = (1.0 + self._jitter * chance) / self._speeds[worker]
        heapq.heappush(self._ends, (self.now + seconds, worker))

    def next(self) -> int:
        """Advance to the next gradient, and return its worker, the lower rank among equals."""
        self.now, worker = heapq.heappop(self._ends)
        return worker


@dataclass(frozen=True, slots=True)
class Advance:
    """What led to one version: gradients in the order of arrival, and the simulated time of it."""

    exchanged: Exchanged
    arrived: Sequence[Evaluation]
    refused: int
    clock: float


class Pace(Protocol):
    """What leads a cluster from version to version."""

    def advance(self, replica: Replica, loss_of: LossOf, *, step: int) -> Advance:
        """Evaluate and exchange gradients until the next version can be applied. Does not apply
        it."""


class Lockstep:
    """Every worker contributes one gradient to every version, which takes a second."""

    def __init__(self, exchange: VirtualExchange) -> None:
        self._exchange = exchange

    def advance(self, replica: Replica, loss_of: LossOf, *, step: int) -> Advance:
        arrived = replica.evaluate(range(len(self._exchange.workers)), loss_of)
        exchanged = self._exchange.average(
            [evaluation.gradients for evaluation in arrived],
            step=step,
            learning_rate=arrived[0].learning_rate,
        )
        return Advance(exchanged, arrived, refused=0, clock=float(step + 1))


class Race:
    """Versions close by the rules of ``server``; gradients arrive by the ``timetable``.

    A gradient is evaluated when its worker begins it, because then its weights are the newest and
    are in the network: no older weights are kept, but one gradient for each worker.
    """

    def __init__(self, server: VirtualServer, timetable: Timetable, *, workers: int) -> None:
        self.server, self._timetable = server, timetable
        self._workers = workers
        self._under_way: dict[int, Evaluation] = {}

    def advance(self, replica: Replica, loss_of: LossOf, *, step: int) -> Advance:
        del step  # the server counts versions, and each worker its own steps
        arrived: list[Evaluation] = []
        answers: list[Answer] = []
        waiting = [rank for rank in range(self._workers) if rank not in self._under_way]
        self._begin(waiting, replica, loss_of)
        while True:
            evaluation = self._under_way.pop(self._timetable.next())
            answer = self.server.push(evaluation)
            arrived.append(evaluation)
            answers.append(answer)
            if answer.mean is not None:
                break
            if evaluation.version < replica.version:
                self._begin([evaluation.worker], replica, loss_of)
        pushed = sum(answer.pushed_nbytes for answer in answers) / self._workers
        refused = sum(answer.refused for answer in answers)
        exchanged = Exchanged(answer.mean, pushed, answer.pulled_nbytes)
        return Advance(exchanged, arrived, refused, self._timetable.now)

    def _begin(self, workers: Iterable[int], replica: Replica, loss_of: LossOf) -> None:
        for evaluation in replica.evaluate(workers, loss_of):
            self._under_way[evaluation.worker] = evaluation
            self._timetable.begin(evaluation.worker)
