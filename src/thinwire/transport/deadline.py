"""The end of a wait."""

from __future__ import annotations

import time

from thinwire.settings import check_at_least


class Deadline:
    """Counts down from the moment it is made. 0 seconds: look once, do not wait."""

    def __init__(self, seconds: float) -> None:
        check_at_least(seconds, 0.0, owner="transport", field="deadline_seconds")
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left_seconds(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        return self.left_seconds() == 0.0
