"""Jobs without threads: the first stage when one is submitted, the others when all are awaited.

Where training leaves no processor free, threads of our own would only take turns with it: each
hand-over costs caches and waits, and nothing is hidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from thinwire.worker.pipeline import Job
from thinwire.worker.spans import Span, unwatched


class Inline:
    """What a ``Pipeline`` is, in the thread of whoever submits and drains.

    After an error nothing runs any more; ``check``, ``submit`` and ``drain`` raise it.
    """

    def __init__(self, stages: Sequence[str], *, on_error: Callable[[BaseException], None]) -> None:
        self._stages, self._on_error = stages, on_error
        self._jobs: list[Job] = []
        self._error: BaseException | None = None
        self._active_since = 0.0
        self.span: Span = unwatched
        self.work_seconds = dict.fromkeys(stages, 0.0)
        self.active_seconds = self.exposed_seconds = 0.0

    def submit(self, job: Job) -> None:
        if not self._jobs:
            self._active_since = time.perf_counter()
        self._jobs.append(job)
        self._work(0, job)

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def drain(self, *, deadline_seconds: float, what: str) -> None:
        """Every wait within a stage has a deadline of its own."""
        del deadline_seconds
        start = time.perf_counter()
        jobs, self._jobs = self._jobs, []
        with self.span("wait for the exchange", what):
            for number in range(1, len(self._stages)):
                for job in jobs:
                    self._work(number, job)
        if jobs:
            self.exposed_seconds += time.perf_counter() - start
            self.active_seconds += time.perf_counter() - self._active_since
        self.check()

    def close(self) -> None:
        """There is nothing to stop."""

    def _work(self, number: int, job: Job) -> None:
        self.check()
        stage, start = self._stages[number], time.thread_time()
        try:
            with self.span(stage, job):
                job.stages[number]()
                if number + 1 == len(self._stages):
                    job.finish()
        except BaseException as error:
            self._error = error
            with suppress(Exception):  # the error itself matters more
                self._on_error(error)
            raise
        finally:
            self.work_seconds[stage] += time.thread_time() - start
