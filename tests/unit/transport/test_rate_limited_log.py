"""``RateLimitedLog``: transport/rate_limited_log.py."""

from __future__ import annotations

import logging

import pytest

from thinwire.rate_limited_log import RateLimitedLog


def test_a_flood_of_refusals_is_a_few_lines_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(logging.getLogger("refusals"))
    for n in range(1000):
        log.note(f"peer {n}", now=50.0)
    lines = len(caplog.messages)
    assert 1 < lines < 100
    assert caplog.messages == [f"peer {n}" for n in range(lines)]
    log.catch_up(now=51.0)
    assert len(caplog.messages) == lines
    log.catch_up(now=100.0)
    assert caplog.messages[lines:] == [f"and {1000 - lines} more like these"]
    log.note("peer 1000", now=100.0)
    log.catch_up(now=200.0)
    assert caplog.messages[lines + 1 :] == ["peer 1000"]
