"""Says who was refused, one line each, and no more lines than somebody can read.

A flood of bad peers must not become a flood of lines: what does not fit is counted and said later.
A line says what a peer did, and if it repeats a word of the peer's, that stays within the line.
"""

from __future__ import annotations

import logging

_SECONDS = 10.0
_LINES = 20  # in that time
_MOST_CHARACTERS = 500


class Refusals:
    """Writes to one logger, at one level."""

    def __init__(self, logger: logging.Logger, *, level: int = logging.WARNING) -> None:
        self._logger, self._level = logger, level
        self._since = float("-inf")
        self._lines = 0
        self._more = 0

    def note(self, text: str, *, now: float) -> None:
        """Log it, or count it if there were too many lines lately."""
        self.catch_up(now=now)
        if self._lines < _LINES:
            self._lines += 1
            self._logger.log(self._level, "%s", _one_line(text))
        else:
            self._more += 1

    def catch_up(self, *, now: float) -> None:
        """Say how many were not logged, once there is room again. Call now and then."""
        if now - self._since < _SECONDS:
            return
        if self._more:
            self._logger.log(self._level, "and %d more like these", self._more)
        self._since, self._lines, self._more = now, 0, 0


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:_MOST_CHARACTERS])
