"""What a worker says to the process that started it: events, and what it warns of."""

from __future__ import annotations

import logging
import threading
from typing import TextIO

from thinwire.lab.train.events import Event, Warned, write_event

_MOST_WARNINGS = 100
"""Of one process; the file with its stderr has all of them."""


class Voice:
    """Events, a line each. Any thread may speak."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._lock = out, threading.Lock()

    def say(self, event: Event) -> None:
        with self._lock:
            print(write_event(event), file=self._out, flush=True)


class Warnings(logging.Handler):
    """Tells what is logged as a warning, the same words once."""

    def __init__(self, voice: Voice, worker: int) -> None:
        super().__init__(logging.WARNING)
        self._voice, self._worker = voice, worker
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._told and len(self._told) < _MOST_WARNINGS:
            self._told.add(text)
            self._voice.say(Warned(0, self._worker, text))
