"""Background threads are scheduled as such, and the thread that starts them is not."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from thinwire.exchange.pipeline import started_in_background

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a policy")


def policy_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()
    return found[0]


def test_only_threads_that_are_started_meanwhile_give_way() -> None:
    with started_in_background():
        assert policy_of_a_new_thread() == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert policy_of_a_new_thread() == os.SCHED_OTHER


def test_the_caller_is_as_before_after_an_error() -> None:
    with pytest.raises(ValueError, match="no"), started_in_background():
        raise ValueError("no")
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_policy_that_the_user_chose_stays() -> None:
    found: list[int] = []

    def low_priority() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with started_in_background():
            found.append(policy_of_a_new_thread())
        found.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=low_priority)
    thread.start()
    thread.join()
    assert found == [os.SCHED_IDLE, os.SCHED_IDLE]
