"""Says who was refused, one line each, and no more lines than somebody can read.

A flood of bad peers must not become a flood of lines: what does not fit is counted and said later.
A line says what a peer did, never what it sent.
"""

from __future__ import annotations

import logging

_SECONDS = 10.0
_LINES = 20  # in that time


class Refusals:
    """Writes to one logger."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._since = float("-inf")
        self._lines = 0
        self._more = 0

    def note(self, text: str, *, now: float) -> None:
        """Log it, or count it if there were too many lines lately."""
        self.catch_up(now=now)
        if self._lines < _LINES:
            self._lines += 1
            self._logger.warning("%s", text)
        else:
            self._more += 1

    def catch_up(self, *, now: float) -> None:
        """Say how many were not logged, once there is room again. Call now and then."""
        if now - self._since < _SECONDS:
            return
        if self._more:
            self._logger.warning("and %d more refusals like these", self._more)
        self._since, self._lines, self._more = now, 0, 0
