"""Stages without threads: their order, and errors that stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.exchange.jobs import STAGES, Recorder, ignore
from thinwire.exchange.inline import Inline


def test_the_first_stage_is_done_at_once_and_the_others_when_all_are_awaited() -> None:
    log: list[str] = []
    inline = Inline(STAGES, on_error=ignore)
    for name in "ab":
        inline.submit(Recorder(log, name))
    assert log == ["first a", "first b"]
    inline.drain(deadline_seconds=30, what="test")
    assert log[2:] == ["second a", "finish a", "second b", "finish b"]
    inline.drain(deadline_seconds=30, what="test")
    assert len(log) == 6


def test_an_error_is_raised_at_once_and_for_ever_and_nothing_runs_any_more() -> None:
    log: list[str] = []
    told: list[BaseException] = []
    inline, error = Inline(STAGES, on_error=told.append), ZeroDivisionError("mine")
    inline.submit(Recorder(log, "a"))
    with pytest.raises(ZeroDivisionError):
        inline.submit(Recorder(log, "b", fails=error))
    attempts: list[Callable[[], None]] = [
        lambda: inline.submit(Recorder(log, "c")),
        lambda: inline.drain(deadline_seconds=30, what="test"),
        inline.check,
    ]
    for again in attempts:
        with pytest.raises(ZeroDivisionError) as raised:
            again()
        assert raised.value is error
    assert told == [error]
    assert log == ["first a", "first b"]


def test_time_is_counted() -> None:
    inline = Inline(STAGES, on_error=ignore)
    inline.drain(deadline_seconds=30, what="test")
    assert inline.active_seconds == inline.exposed_seconds == 0
    inline.submit(Recorder([], "a"))
    inline.drain(deadline_seconds=30, what="test")
    assert inline.active_seconds >= inline.exposed_seconds > 0
    assert all(seconds > 0 for seconds in inline.work_seconds.values())
