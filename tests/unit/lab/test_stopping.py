"""Ctrl-C, however often the user presses it. Signals are real."""

from __future__ import annotations

import os
import signal
import time

import pytest

from thinwire_lab.train.interrupts import PATIENCE_SECONDS, Interrupts

DEADLINE_SECONDS = 30.0


def test_the_second_one_changes_nothing() -> None:
    with Interrupts() as interrupts:
        assert not interrupts.asked
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.asked


def test_many_end_at_once_but_not_in_the_first_second() -> None:
    began = time.monotonic()
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        hold_the_key(until=began + DEADLINE_SECONDS)
    assert time.monotonic() - began >= PATIENCE_SECONDS


def hold_the_key(*, until: float) -> None:
    while time.monotonic() < until:
        os.kill(os.getpid(), signal.SIGINT)


def test_closing_the_terminal_is_never_impatience() -> None:
    with Interrupts() as interrupts:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.asked
