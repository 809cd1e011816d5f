"""Ctrl-C in a training run: the step that is under way is finished first."""

from __future__ import annotations

import signal
import time
from contextlib import AbstractContextManager
from types import FrameType, TracebackType

from thinwire.lab.train.silence import silence_closed

PATIENCE_SECONDS = 1.0
"""So long after the first Ctrl-C no other counts, as when the key is held down."""


class Interrupts(AbstractContextManager["Interrupts"]):
    """Notes Ctrl-C (or SIGTERM) while it is entered. The second changes nothing, so that what the
    first began is finished; a later one is a KeyboardInterrupt.

    SIGHUP is noted, too, however often it comes: a terminal that is closed sends several. For
    simulated workers this is all that is needed to ``Stop``.
    """

    def __init__(self) -> None:
        self.asked = False
        self._count, self._first = 0, 0.0

    def before(self, step: int) -> None:
        """Nobody else has to know."""

    def after(self, done: int) -> bool:
        return self.asked

    def __enter__(self) -> Interrupts:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
            numbers.append(signal.SIGHUP)
        self._earlier = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            silence_closed()
        elif self._is_too_many(time.monotonic()):
            raise KeyboardInterrupt
        self.asked = True

    def _is_too_many(self, now: float) -> bool:
        self._count += 1
        if self._count == 1:
            self._first = now
        return self._count > 2 and now - self._first > PATIENCE_SECONDS
