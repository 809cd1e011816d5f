"""Ctrl-C in a training run: the step that is under way is finished first."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from types import FrameType, TracebackType

from thinwire.lab.train.silence import silence_closed


class Interrupts(AbstractContextManager["Interrupts"]):
    """Notes the first Ctrl-C (or SIGTERM) while it is entered; the second is a KeyboardInterrupt.

    SIGHUP is noted, too, however often it comes: a terminal that is closed sends several. For
    simulated workers this is all that is needed to ``Stop``.
    """

    def __init__(self) -> None:
        self.asked = False

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
        elif self.asked:
            raise KeyboardInterrupt
        self.asked = True
