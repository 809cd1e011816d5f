"""Ctrl-C in a training run: the step that is under way is finished first."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from types import FrameType, TracebackType


class Interrupts(AbstractContextManager["Interrupts"]):
    """Notes the first Ctrl-C (or SIGTERM) while it is entered; the second is a KeyboardInterrupt.

    For simulated workers it is all that is needed to ``Stop``.
    """

    def __init__(self) -> None:
        self.asked = False

    def before(self, step: int) -> None:
        """Nobody else has to know."""

    def after(self, done: int) -> bool:
        return self.asked

    def __enter__(self) -> Interrupts:
        self._earlier = {
            number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)
        }
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
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
