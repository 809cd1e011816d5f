"""``bench_training``: runs that are not finished yet, each from hosts and processes to a result."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from thinwire.errors import ThinwireError
from thinwire_lab.bench.hosts import hosts
from thinwire_lab.bench.links.cases import NONE, LinkCase, delay_seconds_of, rate_of
from thinwire_lab.bench.machine import family_usage, this_machine
from thinwire_lab.bench.server.cells import place_on
from thinwire_lab.bench.training.result import Point, ResultStore, TrainingResult
from thinwire_lab.bench.training.settings import (
    HOSTS,
    UNEVEN,
    TrainingBench,
    TrainingRun,
    numel_of,
)
from thinwire_lab.bench.workers.messages import Advance, Begin, Reply, Score
from thinwire_lab.bench.workers.pool import Cluster, Place, ProcessPool


class Watcher(Protocol):
    """Gets the progress of runs."""

    def begin(self, run: TrainingRun, *, number: int, count: int) -> None: ...

    def show(self, steps: int, seconds: float, loss: float | None) -> None:
        """Steps done, the seconds they took, and the last held-out loss, if there is one."""

    def end(self, result: TrainingResult) -> None: ...


EVALUATIONS = 20
_FIRST_STEPS = 3
"""After these, PowerSGD has compressed once and DDP has its final buckets."""
_TIMED_STEPS = 6
_TIMED_ALONE_STEPS = 60
"""Without communication nothing but these steps is run."""
_DEADLINE_SECONDS = 120.0
_SLOWEST_STEP_SECONDS = 10.0
_DENSE_TRIPS = 8
"""A timeout allows a step this many transfers of all gradients over the link."""


def bench_training(
    bench: TrainingBench, store: ResultStore, watcher: Watcher, *, command: str
) -> bool:
    """Train whatever is not finished, and keep each result at once. False after Ctrl-C."""
    waiting = [run for run in bench.runs() if not store.has(run)]
    try:
        for number, run in enumerate(waiting, 1):
            watcher.begin(run, number=number, count=len(waiting))
            result = train_way(
                run, longest_seconds=bench.longest_seconds, watch=watcher.show, command=command
            )
            store.save(run, result)
            watcher.end(result)
    except KeyboardInterrupt:
        return False
    return True


def train_way(
    run: TrainingRun,
    *,
    longest_seconds: float,
    watch: Callable[[int, float, float | None], None],
    command: str,
) -> TrainingResult:
    """Train, and score held-out text now and then, which takes no time of the result's."""
    record, before = _Record(), family_usage()
    delay = delay_seconds_of(run.link.delay)
    with (
        tempfile.TemporaryDirectory() as folder,
        hosts(HOSTS, delay_seconds=delay) as network,
        ProcessPool(Path(folder)) as pool,
    ):
        places = [(f"host {i}", place_on(host)) for i, host in enumerate(network.hosts)]
        trainers = _Trainers(run, pool, places, Path(folder))
        network.limit(rate_of(run.link.rate))
        for number, end in enumerate(stops(run.way, run.steps)):
            record.add(trainers.advance(end - record.steps), timed=number > 0)
            watch(record.steps, record.seconds, record.last_loss)
            if record.diverged or (number == 1 and _cut_off(run, record, longest_seconds)):
                break
            if run.way != NONE and (number > 1 or end == run.steps):
                record.add_point(trainers.score())
    return record.result(family_usage().others_since(before), command)


def stops(way: LinkCase, steps: int) -> list[int]:
    """After which steps hosts pause: after the first ones, after some that are timed, and to score.

    Ways with rounds pause where no exchange is under way: it would go on for free.
    """
    later = way.rounds.delay if way.rounds is not None else 0
    first = _FIRST_STEPS if way.rounds is None else later
    few = _TIMED_ALONE_STEPS if way == NONE else _TIMED_STEPS
    timed = first + (few if way.rounds is None else way.period)
    scored = {
        later + way.period * max(1, round((steps * i / EVALUATIONS - later) / way.period))
        for i in range(1, EVALUATIONS)
    }
    between = sorted(stop for stop in scored if timed < stop < steps)
    return [*(stop for stop in (first, timed) if 0 < stop < steps), *between, steps]


def _cut_off(run: TrainingRun, record: _Record, longest_seconds: float) -> bool:
    """Whether steps are known well enough, and all of them would take too long."""
    if run.way == NONE:
        return True
    too_long = record.mean_seconds * run.steps > longest_seconds
    return too_long and run.way.name not in UNEVEN


@dataclass(slots=True)
class _Record:
    """What was measured so far."""

    steps: int = 0
    seconds: float = 0.0
    sent_nbytes: int = 0
    received_nbytes: int = 0
    diverged: bool = False
    points: list[Point] = field(default_factory=list)
    _untimed: tuple[int, float] = (0, 0.0)

    def add(self, replies: list[Reply], *, timed: bool) -> None:
        """Some steps of all hosts; the slowest one counts."""
        self.steps += len(replies[0].step_seconds)
        self.seconds += max(sum(reply.step_seconds) for reply in replies)
        self.sent_nbytes += sum(reply.sent_nbytes for reply in replies) // len(replies)
        self.received_nbytes += sum(reply.received_nbytes for reply in replies) // len(replies)
        self.diverged = any(reply.loss is None for reply in replies)
        if not timed:
            self._untimed = self.steps, self.seconds

    def add_point(self, loss: float) -> None:
        self.points.append(Point(self.steps, self.seconds, loss))

    @property
    def last_loss(self) -> float | None:
        return self.points[-1].loss if self.points else None

    @property
    def mean_seconds(self) -> float:
        """Of a step, without the first ones, if there are others."""
        steps, seconds = self._untimed if self._untimed[0] < self.steps else (0, 0.0)
        return (self.seconds - seconds) / (self.steps - steps)

    def result(self, others: float, command: str) -> TrainingResult:
        return TrainingResult(
            points=tuple(self.points),
            steps=self.steps,
            step_seconds=self.mean_seconds,
            sent_nbytes=self.sent_nbytes / self.steps,
            received_nbytes=self.received_nbytes / self.steps,
            diverged=self.diverged,
            others=others,
            machine=str(this_machine()),
            command=command,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )


class _Trainers:
    """A process on each host, which trains."""

    def __init__(
        self, run: TrainingRun, pool: ProcessPool, places: list[tuple[str, Place]], folder: Path
    ) -> None:
        bits = rate_of(run.link.rate)
        link = 0.0 if bits is None else _DENSE_TRIPS * 32 * numel_of(run.scale) / bits
        self._step_seconds = _SLOWEST_STEP_SECONDS + link
        deadline = _DEADLINE_SECONDS + self._step_seconds
        self._cluster = Cluster(
            pool, servers=(), workers=places, role="learner", timeout_seconds=deadline
        )
        self._cluster.join(folder / "store", [], deadline_seconds=deadline)
        begin = Begin(run.way.name, run.scale, run.steps, deadline)
        self._cluster.prepare((worker, begin) for worker in self._cluster.workers)

    def advance(self, steps: int) -> list[Reply]:
        seconds = _DEADLINE_SECONDS + steps * self._step_seconds
        requests = ((worker, Advance(steps)) for worker in self._cluster.workers)
        return self._cluster.ask(requests, seconds)

    def score(self) -> float:
        """Of the first host: all agree."""
        (reply,) = self._cluster.ask([(self._cluster.workers[0], Score())], _DEADLINE_SECONDS)
        if reply.loss is None:
            raise ThinwireError("bench: a learner scored without a loss")
        return reply.loss
