"""``RateLimitedLog``: log what peers do, a bounded number of lines however many peers there are.

A flood of bad peers must not become a flood of lines: what exceeds the limit is counted, and the
count is logged later. A line that quotes a peer stays one line.
"""

from __future__ import annotations

import logging

_SECONDS = 10.0
_LINES = 20  # in that time
_MOST_CHARACTERS = 500


class RateLimitedLog:
    """Writes to one logger, at one level."""

    def __init__(self, logger: logging.Logger, *, level: int = logging.WARNING) -> None:
        self._logger, self._level = logger, level
        self._since = float("-inf")
        self._lines = 0
        self._suppressed = 0

    def note(self, text: str, *, now: float) -> None:
        """Log ``text``, or count it if there were too many lines lately."""
        self.catch_up(now=now)
        if self._lines < _LINES:
            self._lines += 1
            self._logger.log(self._level, "%s", _one_line(text))
        else:
            self._suppressed += 1

    def catch_up(self, *, now: float) -> None:
        """Log how many lines were suppressed, once the time is over. Call it periodically."""
        if now - self._since < _SECONDS:
            return
        if self._suppressed:
            self._logger.log(self._level, "and %d more like these", self._suppressed)
        self._since, self._lines, self._suppressed = now, 0, 0


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:_MOST_CHARACTERS])
