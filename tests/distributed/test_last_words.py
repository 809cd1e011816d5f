"""What a rank says when it stops reaches the others, whatever it was sending."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.distributed.launch import run
from thinwire.errors import WorkerLost
from thinwire.exchange.link import LEAVE_NBYTES, Link, Wait

DEADLINE_SECONDS = 20.0
LARGE_NBYTES = 1 << 28
"""Far more than sockets buffer: when the rank leaves, most of it is still to be sent."""


def leave_in_the_middle() -> str:
    """The error on rank 1 because of rank 0, which forgets what it sends, as after an error."""
    link = Link([0, 1], deadline_seconds=DEADLINE_SECONDS, patience_seconds=DEADLINE_SECONDS)
    text = ""
    if link.rank == 0:
        link.send_beside([1], torch.zeros(LARGE_NBYTES, dtype=torch.uint8), foreseen=True)
        link.leave("no mood", step=0)
    else:
        beside = link.receive_beside(0, LARGE_NBYTES, None, foreseen=True)
        try:
            link.frame(link.receive(0, most_nbytes=LEAVE_NBYTES), Wait("anything"), step=0)
        except WorkerLost as error:
            text = str(error)
        del beside
    dist.barrier()
    return text


def test_last_words_are_not_held_up_by_messages_that_are_not_awaited() -> None:
    assert run(leave_in_the_middle, ranks=2) == ["", "no mood"]
