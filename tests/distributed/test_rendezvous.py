"""Rendezvous: no rank goes on before all have made their links."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.training import network
from thinwire.errors import WorkerLost
from thinwire.hooks import rendezvous


class SlowLinks(rendezvous._Links):
    """They are there, but this rank needs a second more."""

    def __init__(self, hosts: Sequence[Sequence[int]], deadline_seconds: float) -> None:
        super().__init__(hosts, deadline_seconds)
        time.sleep(1.0)


def seconds_until_compressed() -> float:
    """While rank 1 takes a second for its links."""
    if dist.get_rank() == 1:
        rendezvous._Links = SlowLinks  # type: ignore[misc]
    model = DistributedDataParallel(network())
    start = time.monotonic()
    tw.compress_ddp(model, tw.dense())
    return time.monotonic() - start


def test_no_rank_goes_on_before_all_ranks_are_linked() -> None:
    assert run(seconds_until_compressed, ranks=2, keep=False)[0] > 0.9


class NoLinks(rendezvous._Links):
    def __init__(self, hosts: Sequence[Sequence[int]], deadline_seconds: float) -> None:
        super().__init__(hosts, deadline_seconds)
        raise WorkerLost("this rank reaches no other")


def why_rank_1_is_not_waited_for() -> str:
    if dist.get_rank() == 1:
        rendezvous._Links = NoLinks  # type: ignore[misc]
    model = DistributedDataParallel(network())
    with pytest.raises(WorkerLost) as raised:
        tw.compress_ddp(model, tw.dense())
    return str(raised.value)


def test_a_rank_that_cannot_be_linked_is_named_at_once() -> None:
    texts = run(why_rank_1_is_not_waited_for, ranks=2, keep=False)
    assert texts[0] == "rank 1 could not reach all others: see its own error"
    assert texts[1] == "this rank reaches no other"
