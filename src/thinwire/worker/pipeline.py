"""One background thread that does jobs in order, and gives its errors to whoever waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from thinwire.errors import TransportTimeout


class Pipeline:
    """Jobs run one after the other. After an error the rest are dropped; ``drain`` raises it.

    The thread is a daemon: a job that waits for a dead peer does not keep the program alive.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._left = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        with self._idle:
            self._left += 1
        self._jobs.put(job)

    def drain(self, *, deadline_seconds: float, what: str) -> None:
        """Wait until nothing is left to do; raise what went wrong."""
        with self._idle:
            done = self._idle.wait_for(lambda: self._left == 0, timeout=deadline_seconds)
            if self._error is not None:
                raise self._error
            if not done:
                raise TransportTimeout(f"{what}: not done after {deadline_seconds:g} s")

    def close(self) -> None:
        """Take no more jobs. Does not wait."""
        self._jobs.put(None)

    @property
    def failed(self) -> bool:
        return self._error is not None

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:
                self._error = self._error or error
            finally:
                with self._idle:
                    self._left -= 1
                    self._idle.notify_all()
