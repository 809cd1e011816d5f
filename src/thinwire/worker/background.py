"""Threads that leave the processors to training whenever they can."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def started_in_background() -> Iterator[None]:
    """Let threads that are started meanwhile interrupt nobody when they wake up.

    They wait for the end of a time slice, or for a free processor. It matters most to gloo: whoever
    sends holds a lock for which gloo's own thread does not sleep but asks again and again, so one
    that interrupts a sender on its processor burns the rest of its time slice. That was a tenth of
    a step where training left no processor free.
    """
    # Threads inherit how their maker is scheduled. Elsewhere, and where somebody has chosen a
    # policy or forbids to change it, all stays as it is: results are the same.
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
