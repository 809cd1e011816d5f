"""The bytes of all ranks reach rank 0, or it says who is missing."""

from __future__ import annotations

import torch
import torch.distributed as dist

import thinwire as tw
from tests.distributed.launch import run
from thinwire.integrations.lightning import Gather


def gather() -> list[bytes]:
    rank = dist.get_rank()
    found = Gather(deadline_seconds=30.0).to_rank_zero(
        torch.full((1000 * rank + 1,), rank, dtype=torch.uint8)
    )
    dist.barrier()
    return [data.numpy().tobytes() for data in found]


def gather_alone() -> str:
    meeting = Gather(deadline_seconds=2.0)
    if dist.get_rank() == 1:
        return "does not take part"
    try:
        meeting.to_rank_zero(torch.zeros(1, dtype=torch.uint8))
    except tw.WorkerLost as error:
        return str(error)
    return "no error"


def test_rank_zero_gets_everything_by_rank_and_the_others_nothing() -> None:
    everything = [bytes([rank]) * (1000 * rank + 1) for rank in range(3)]
    assert run(gather, ranks=3) == [everything, [], []]


def test_a_rank_that_does_not_save_is_named_within_the_deadline() -> None:
    assert "rank 1 did not take part" in run(gather_alone, ranks=2)[0]
