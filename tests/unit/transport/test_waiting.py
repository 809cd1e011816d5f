"""When a worker that waits for a server speaks."""

from __future__ import annotations

import pytest

from thinwire.clock import next_reminder


@pytest.mark.parametrize(
    ("waited", "following"),
    [(0.0, 5.0), (4.99, 5.0), (5.0, 10.0), (9.9, 10.0), (10.0, 20.0), (39.0, 40.0), (40.1, 80.0)],
)
def test_reminders_come_ever_more_rarely(waited: float, following: float) -> None:
    assert next_reminder(waited) == following
