"""``Deadline``, ``Retries``, ``AwakeClock``, ``TokenBucket``: how long to wait, how long others
were silent, and how much may come in a time."""

from __future__ import annotations

import os
import time

from thinwire.checks import check_at_least


class AwakeClock:
    """Seconds in which this process was awake: one that was stopped did not hear its peers, so they
    were not silent. ``tick`` it at least once a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self._last = time.monotonic()

    def tick(self) -> float:
        last, self._last = self._last, time.monotonic()
        self.now += min(self._last - last, 1.0)
        return self.now


class Deadline:
    """A timeout that starts when it is made. 0 seconds: look once, do not wait."""

    def __init__(self, seconds: float) -> None:
        check_at_least(seconds, 0.0, owner="transport", field="deadline_seconds")
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left_seconds(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        return self.left_seconds() == 0.0


_FIRST_REMINDER_SECONDS = 5.0
_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 0.05, 2.0


class Retries:
    """When to try again, and when to say that it is still tried."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._reminder = _FIRST_REMINDER_SECONDS

    @property
    def waited_seconds(self) -> float:
        return self._deadline.seconds - self._deadline.left_seconds()

    def is_reminder_due(self) -> bool:
        """After 5, 10, 20, 40, ... seconds, once each."""
        waited = self.waited_seconds
        if waited < self._reminder:
            return False
        self._reminder = next_reminder(waited)
        return True

    def pause(self) -> None:
        """Backoff in proportion to what was waited, with jitter, so that not all come at once."""
        jitter = 0.5 + os.urandom(1)[0] / 510
        seconds = max(self.waited_seconds / 32, _LEAST_PAUSE_SECONDS)
        time.sleep(min(jitter * min(seconds, _MOST_PAUSE_SECONDS), self._deadline.left_seconds()))


def next_reminder(waited: float) -> float:
    """The first of 5, 10, 20, 40, ... seconds that is still to come."""
    seconds = _FIRST_REMINDER_SECONDS
    while seconds <= waited:
        seconds *= 2
    return seconds


class TokenBucket:
    """Lets ``per_second`` of something through, and that of ``burst_seconds`` at once."""

    def __init__(self, per_second: float, burst_seconds: float, *, now: float) -> None:
        self._per_second, self._most = per_second, per_second * burst_seconds
        self._left, self._now = self._most, now

    def take(self, amount: float, *, now: float) -> bool:
        """Count ``amount``; returns whether it is within the rate."""
        elapsed, self._now = now - self._now, now
        self._left = min(self._left + elapsed * self._per_second, self._most) - amount
        return self._left >= 0.0
