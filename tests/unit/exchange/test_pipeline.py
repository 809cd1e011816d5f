"""The pipeline: order, overlap, errors that arrive as themselves, and waits that end."""

from __future__ import annotations

import threading

import pytest

import thinwire as tw
from tests.unit.exchange.jobs import STAGES, Recorder, ignore
from thinwire.exchange.pipeline import Pipeline


def test_each_stage_keeps_the_order_of_jobs() -> None:
    log: list[str] = []
    pipeline = Pipeline(STAGES, on_error=ignore)
    for name in "abc":
        pipeline.submit(Recorder(log, name))
    pipeline.drain(deadline_seconds=30, what="test")
    for stage in ("first", "second", "finish"):
        assert [line[-1] for line in log if line.startswith(stage)] == ["a", "b", "c"]


def test_stages_overlap() -> None:
    """The second stage of one job waits for the first stage of the next: only threads can."""
    pipeline, reached = Pipeline(STAGES, on_error=ignore), threading.Event()

    class Early(Recorder):
        def second(self) -> None:
            assert reached.wait(timeout=30)

    class Late(Recorder):
        def first(self) -> None:
            reached.set()

    pipeline.submit(Early([], "early"))
    pipeline.submit(Late([], "late"))
    pipeline.drain(deadline_seconds=60, what="test")


def test_an_error_is_raised_as_itself_again_and_again_and_every_job_is_finished() -> None:
    log: list[str] = []
    told: list[BaseException] = []
    pipeline, error = Pipeline(STAGES, on_error=told.append), ZeroDivisionError("mine")
    pipeline.submit(Recorder(log, "a", fails=error))
    pipeline.submit(Recorder(log, "b"))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as raised:
            pipeline.drain(deadline_seconds=30, what="test")
        assert raised.value is error
    with pytest.raises(ZeroDivisionError):
        pipeline.check()
    assert told == [error]
    assert "second a" not in log
    assert "finish a" in log
    assert "finish b" in log


def test_a_wait_ends_and_says_for_what() -> None:
    pipeline, release = Pipeline(STAGES, on_error=ignore), threading.Event()

    class Stuck(Recorder):
        def first(self) -> None:
            release.wait(timeout=60)

    pipeline.submit(Stuck([], "stuck"))
    with pytest.raises(tw.TransportTimeout, match=r"step 7: not done after 0\.05 s"):
        pipeline.drain(deadline_seconds=0.05, what="step 7")
    release.set()
    pipeline.drain(deadline_seconds=30, what="step 7")


def test_closing_ends_the_threads() -> None:
    before = set(threading.enumerate())
    pipeline = Pipeline(STAGES, on_error=ignore)
    own = [thread for thread in threading.enumerate() if thread not in before]
    assert len(own) == len(STAGES)
    pipeline.close()
    for thread in own:
        thread.join(timeout=30)
        assert not thread.is_alive()
