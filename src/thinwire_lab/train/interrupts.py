"""``Interrupts``: Ctrl-C in a training run, which finishes the current step first."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import AbstractContextManager
from types import FrameType

_CLOSING_MILLISECONDS = 250
"""The process at the other end of a pipe gets the same signal, and may end a moment later."""


def redirect_closed() -> None:
    """Redirect stdout and stderr to /dev/null where their terminal or pipe is closed."""
    for output in (1, 2):
        poll = select.poll()
        poll.register(output, 0)  # wait for nothing but its end
        if poll.poll(_CLOSING_MILLISECONDS):
            _redirect(output)


def _redirect(output: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, output)
    os.close(null)


PATIENCE_SECONDS = 1.0
"""For so long after the first Ctrl-C no other counts: the key may be held down."""


class Interrupts(AbstractContextManager["Interrupts"]):
    """Turns Ctrl-C (or SIGTERM) into ``asked`` while it is entered. A second one changes nothing,
    so that the run can save and stop; a later one raises KeyboardInterrupt.

    SIGHUP sets ``asked``, too, however often it comes: a terminal that closes sends several. With
    simulated workers this is the ``Stop`` of a loop.
    """

    def __init__(self) -> None:
        self.asked = False
        self._count, self._first = 0, 0.0

    def before(self, step: int) -> None:
        """Nothing: there are no other processes to agree with."""

    def after(self, done: int) -> bool:
        return self.asked

    def __enter__(self) -> Interrupts:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
            numbers.append(signal.SIGHUP)
        self._earlier = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            redirect_closed()
        elif self._is_too_many(time.monotonic()):
            raise KeyboardInterrupt
        self.asked = True

    def _is_too_many(self, now: float) -> bool:
        self._count += 1
        if self._count == 1:
            self._first = now
        return self._count > 2 and now - self._first > PATIENCE_SECONDS
