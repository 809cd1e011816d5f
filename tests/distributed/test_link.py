"""How long a rank waits for another, over a link of its own."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed.fresh import fresh
from thinwire.errors import WorkerLost
from thinwire.exchange.link import Link, Wait
from thinwire.wire.messages import Push

DEADLINE_SECONDS = 5.0
LATE_SECONDS = 3.0
PATIENCE_SECONDS = 60.0
LARGE_NBYTES = 1 << 24
"""More than the kernel keeps for a peer that takes nothing."""

_kept: list[Link] = []
"""Links that outlive their task: one that is gone would be noticed at once."""


def wait_for_a_late_rank_that_then_takes_nothing() -> tuple[float, str]:
    """How long rank 0 waits in all: rank 1 sends late, and takes nothing of what it is sent."""
    link = Link([0, 1], deadline_seconds=DEADLINE_SECONDS, patience_seconds=DEADLINE_SECONDS)
    _kept.append(link)
    if dist.get_rank() == 1:
        time.sleep(LATE_SECONDS)
        sent = link.send([0], Push(3, 0.0, ()), step=3, most_nbytes=256)
        link.finish(sent, Wait("step 3"))
        return 0.0, ""
    frame = link.receive(1, most_nbytes=256)
    beside = link.send_beside([1], torch.zeros(LARGE_NBYTES, dtype=torch.uint8), foreseen=True)
    start, wait = time.monotonic(), Wait("step 3")
    link.frame(frame, wait, step=3)
    with pytest.raises(WorkerLost) as raised:
        link.finish(beside, wait)
    return time.monotonic() - start, str(raised.value)


def test_all_that_a_unit_waits_for_has_one_deadline() -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with fresh(wait_for_a_late_rank_that_then_takes_nothing, ranks=2) as processes:
        seconds, text = processes[0].result(until)
    assert "rank 1 is gone, or did not take step 3, within 5 s" in text
    assert LATE_SECONDS < seconds < DEADLINE_SECONDS + 1.0
