"""``Inline``: run jobs in the caller's thread, where others would only take turns with training.

Each hand-over costs caches and waits, and where no processor is free nothing is hidden. So
``submit``, or ``begin`` in parts before that, runs the first stage of a job. ``drain`` runs the
others in a thread, and the caller only waits for it: so Ctrl-C interrupts it, which it could not
while it waits for a peer.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from thinwire.errors import TransportTimeout
from thinwire.exchange.pipeline import Job
from thinwire.watch.trace import Span, unwatched


class Inline:
    """A Runner for one caller.

    After an error nothing runs any more; ``check``, ``submit`` and ``drain`` raise it. The thread
    is a daemon: one that waits for a dead peer does not keep the program alive.
    """

    def __init__(self, stages: Sequence[str], *, on_error: Callable[[BaseException], None]) -> None:
        self._stages, self._on_error = stages, on_error
        self._early = f"{stages[0]} early"
        self._jobs: list[Job] = []
        self._error: BaseException | None = None
        self._awaited: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._active_since = 0.0
        self.span: Span = unwatched
        self.work_seconds = dict.fromkeys(stages, 0.0)
        self.active_seconds = self.exposed_seconds = 0.0
        threading.Thread(target=self._serve, name="thinwire", daemon=True).start()

    def begin(self, work: Callable[[], None], about: object) -> None:
        """Do a part of the first stage of a job that is not complete yet."""
        self._in_first_stage(work, self._early, about)

    def submit(self, job: Job) -> None:
        self.check()
        self._jobs.append(job)
        self._in_first_stage(job.stages[0], self._stages[0], job)

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def fail(self, error: BaseException) -> None:
        """Stop because of this error: nothing runs any more. Only the first one counts."""
        if self._error is None:
            self._error = error
            with suppress(Exception):  # the error itself matters more
                self._on_error(error)

    def drain(self, *, deadline_seconds: float, what: str) -> None:
        self.check()
        jobs, self._jobs = self._jobs, []
        if not jobs:
            return
        start = time.perf_counter()
        with self._stopping_at_errors(), self.span("wait for the exchange", what):
            self._awaited.put(jobs)
            try:
                self._done.get(timeout=deadline_seconds)
            except queue.Empty:
                raise TransportTimeout(f"{what}: not done after {deadline_seconds:g} s") from None
        self.exposed_seconds += time.perf_counter() - start
        self.active_seconds += time.perf_counter() - self._active_since
        self._active_since = 0.0
        self.check()

    def close(self) -> None:
        self._awaited.put(None)

    def _serve(self) -> None:
        while (jobs := self._awaited.get()) is not None:
            with suppress(BaseException), self._stopping_at_errors():  # which the caller raises
                self._finish(jobs)
            del jobs  # else they would keep their gradients alive until the next ones come
            self._done.put(None)

    def _finish(self, jobs: Sequence[Job]) -> None:
        for number in range(1, len(self._stages)):
            for job in jobs:
                self._work(number, job)

    def _in_first_stage(self, work: Callable[[], None], name: str, about: object) -> None:
        """The caller waits for it. Called for each gradient, so it must be quick."""
        start = time.perf_counter()
        self._active_since = self._active_since or start
        try:
            self._timed(0, work, name, about)
        except BaseException as error:
            self.fail(error)
            raise
        self.exposed_seconds += time.perf_counter() - start

    def _work(self, number: int, job: Job) -> None:
        self._timed(number, job.stages[number], self._stages[number], job)
        if number + 1 == len(self._stages):
            job.finish()

    def _timed(self, number: int, work: Callable[[], None], name: str, about: object) -> None:
        self.check()
        start = time.thread_time()
        with self.span(name, about):
            work()
        self.work_seconds[self._stages[number]] += time.thread_time() - start

    @contextmanager
    def _stopping_at_errors(self) -> Iterator[None]:
        """Stop for good if there is an error in here."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise
