"""Background threads, one per stage, that work on many jobs at once and keep their order."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from thinwire.errors import TransportTimeout
from thinwire.worker.background import started_in_background
from thinwire.worker.spans import Span, unwatched


class Job(Protocol):
    @property
    def stages(self) -> Sequence[Callable[[], None]]:
        """What the threads do, one each, in this order."""

    def finish(self) -> None:
        """Called once after the last stage, also if that or an earlier one failed."""


class Pipeline:
    """Each stage has a thread, which does that stage of one job after the other.

    After an error no stage of any job runs any more; ``check`` and ``drain`` raise it, and
    ``on_error`` is told of the first. Threads are daemons: one that waits for a dead peer does not
    keep the program alive.
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
        """Processor time of each stage."""
        self.active_seconds = 0.0
        """How long there was at least one job."""
        self.exposed_seconds = 0.0
        """How long ``drain`` had to wait: what the jobs could not hide behind other work."""
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
        """Raise what went wrong, if anything did."""
        if self._error is not None:
            raise self._error

    def drain(self, *, deadline_seconds: float, what: str) -> None:
        """Wait until nothing is left to do; raise what went wrong."""
        start = time.perf_counter()
        with self.span("wait for the exchange", what), self._idle:
            done = self._idle.wait_for(lambda: self._left == 0, timeout=deadline_seconds)
        self.exposed_seconds += time.perf_counter() - start
        self.check()
        if not done:
            raise TransportTimeout(f"{what}: not done after {deadline_seconds:g} s")

    def close(self) -> None:
        """Take no more jobs. Does not wait."""
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
            del job  # or it would be kept, with all it knows, until the next one comes
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
