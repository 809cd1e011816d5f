"""``Pipeline``: background threads, one per stage, that work on many jobs at once, in order."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from thinwire.errors import TransportTimeout
from thinwire.watch.trace import Span, unwatched


@contextmanager
def started_in_background() -> Iterator[None]:
    """Start threads within this context with SCHED_BATCH, so that waking up preempts no thread.

    They wait for the end of a time slice, or for a free processor. It matters most to gloo: a
    sender holds a lock on which gloo's own thread spins, so one that preempts a sender on its
    processor burns the rest of its time slice. That was a tenth of a step where training left no
    processor free.
    """
    # Threads inherit the policy of the thread that starts them. On other systems, and where the
    # user has chosen a policy or may not change it, all stays as it is: results are the same.
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class Job(Protocol):
    """Work in stages."""

    @property
    def stages(self) -> Sequence[Callable[[], None]]:
        """What to do, one after the other."""

    def finish(self) -> None:
        """Called once after the last stage. A ``Pipeline`` does that also if a stage failed."""


class Runner(Protocol):
    """Runs the stages of jobs: ``Pipeline`` in threads, ``Inline`` in the caller's."""

    span: Span
    work_seconds: dict[str, float]
    """Processor time of each stage."""
    active_seconds: float
    """How long there was at least one job."""
    exposed_seconds: float
    """How long callers had to wait: what the jobs could not hide behind other work."""

    def submit(self, job: Job) -> None:
        """Run this job after those before it."""

    def check(self) -> None:
        """Raise what went wrong, if anything did."""

    def drain(self, *, deadline_seconds: float, what: str) -> None:
        """Wait until nothing is left to do; raise what went wrong."""

    def close(self) -> None:
        """Take no more jobs. Does not wait."""


class Pipeline:
    """A Runner in which each stage has a thread, which does that stage of one job after the other.

    After the first error it calls ``on_error``, and runs no stage of any job any more; ``check``
    and ``drain`` raise it. Threads are daemons: one that waits for a dead peer does not keep the
    program alive.
    """

    def __init__(self, stages: Sequence[str], *, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self._queues: list[queue.SimpleQueue[Job | None]] = [queue.SimpleQueue() for _ in stages]
        self._idle = threading.Condition()
        self._left = 0
        self._error: BaseException | None = None
        self._active_since = 0.0
        self.span: Span = unwatched
        self.work_seconds = dict.fromkeys(stages, 0.0)
        self.active_seconds = self.exposed_seconds = 0.0
        with started_in_background():
            for number, stage in enumerate(stages):
                name = f"thinwire {stage}"
                threading.Thread(
                    target=self._serve, args=(number, stage), name=name, daemon=True
                ).start()

    def submit(self, job: Job) -> None:
        with self._idle:
            if self._left == 0:
                self._active_since = time.perf_counter()
            self._left += 1
        self._queues[0].put(job)

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def drain(self, *, deadline_seconds: float, what: str) -> None:
        start = time.perf_counter()
        with self.span("wait for the exchange", what), self._idle:
            done = self._idle.wait_for(lambda: self._left == 0, timeout=deadline_seconds)
        self.exposed_seconds += time.perf_counter() - start
        self.check()
        if not done:
            raise TransportTimeout(f"{what}: not done after {deadline_seconds:g} s")

    def close(self) -> None:
        self._queues[0].put(None)

    def _serve(self, number: int, stage: str) -> None:
        following = self._queues[number + 1] if number + 1 < len(self._queues) else None
        while (job := self._queues[number].get()) is not None:
            start = time.thread_time()
            with self.span(stage, job):
                self._run(job.stages[number])
                if following is None:
                    self._run(job.finish, always=True)
            self.work_seconds[stage] += time.thread_time() - start
            if following is None:
                self._count_down()
            else:
                following.put(job)
            del job  # else it would keep its gradients alive until the next one comes
        if following is not None:
            following.put(None)

    def _run(self, work: Callable[[], None], *, always: bool = False) -> None:
        try:
            if always or self._error is None:
                work()
        except BaseException as error:
            with self._idle:
                first = self._error is None
                self._error = self._error or error
            if first:
                with suppress(Exception):  # the error itself matters more
                    self._on_error(error)

    def _count_down(self) -> None:
        with self._idle:
            self._left -= 1
            if self._left == 0:
                self.active_seconds += time.perf_counter() - self._active_since
            self._idle.notify_all()
