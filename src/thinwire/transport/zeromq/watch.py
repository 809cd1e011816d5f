"""A thread that does one thing again and again, whatever else the process is busy with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_SECONDS = 0.05


class Watch:
    """Calls ``look`` until stopped, after the seconds that it returned; None is a moment.

    Not after none at all, or nobody else would get the lock that both want.

    It is given the seconds since the last call, and of a long pause only a moment: a process that
    was stopped, or starved, did not look, so nobody was silent before it.
    """

    def __init__(self, look: Callable[[float], float | None]) -> None:
        self._look = look
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="thinwire watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Waits until it has ended. May be called twice."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stopped.is_set():
            now = time.monotonic()
            seconds, last = min(now - last, 4 * _SECONDS), now
            wait = self._look(seconds)
            self._stopped.wait(_SECONDS if wait is None else wait)
