"""A rank that dies or stalls in any part of a round: all others name it, and none of them hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

import thinwire as tw
from tests.distributed.fresh import fresh
from tests.distributed.local_ranks import Rank
from tests.slow import first

RANKS, VICTIM, EVERY = 3, 1, 4
LONG_SECONDS = 600.0
"""A deadline that no test waits for: what ends before was noticed, not timed out."""
SHORT_SECONDS = 8.0
COMPUTING_SECONDS = 4.0
"""More than a step takes before it waits, on a busy machine."""
PATIENCE_SECONDS = 100.0

MOMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "it sends": ("_begin", {}),
    "it waits": ("_finish", {}),
    "it merges": ("merge", {}),
    "it trains alone": ("step", {}),
    "it trains during an exchange": ("step", {"delay": 3}),
    "it sends a fragment": ("_begin", {"fragments": 2, "delay": 1}),
}
FAULTY_STEP = EVERY + 2
"""In the second round; what is sent in the first is on its way then, if there is a delay."""


def strike_in(rank: Rank, moment: str, number: int) -> None:
    """Let this process get the signal at this moment of the second round."""
    owner: Any = rank.local._weights if moment == "merge" else rank.local
    act: Callable[..., Any] = getattr(owner, moment)

    def struck(*arguments: Any, **options: Any) -> Any:
        if moment == "_begin":
            act(*arguments, **options)
        if rank.local.steps > EVERY:
            os.kill(os.getpid(), number)
        return None if moment == "_begin" else act(*arguments, **options)

    setattr(owner, moment, struck)


_kept: list[Rank] = []


def train_with(moment: str, options: dict[str, Any], number: int, seconds: float) -> Any:
    """The error that ends training and the one after it, and how long its step took."""
    rank = Rank(tw.local_average(), every=EVERY, deadline_seconds=seconds, **options)
    _kept.append(rank)
    if dist.get_rank() == VICTIM and moment != "step":
        strike_in(rank, moment, number)
    found = []
    for step in range(4 * EVERY):
        if (dist.get_rank(), moment, step) == (VICTIM, "step", FAULTY_STEP):
            os.kill(os.getpid(), number)
        began = time.monotonic()
        try:
            rank.train(range(step, step + 1))
        except tw.ThinwireError as error:
            found.append((type(error).__name__, str(error), time.monotonic() - began))
        if len(found) == 2:
            return found
    return found


def check_named(name: str, number: int, seconds: float) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with fresh(train_with, *MOMENTS[name], number, seconds, ranks=RANKS) as processes:
        for survivor in processes:
            if survivor.rank == VICTIM:
                continue
            (kind, text, took), (kind_again, text_again, _) = survivor.result(until)
            assert kind == "WorkerLost"
            assert f"rank {VICTIM} " in text
            assert took < seconds + COMPUTING_SECONDS
            assert (kind_again, text_again) == (kind, text)


@pytest.mark.parametrize("name", MOMENTS)
def test_a_rank_that_dies_is_named_by_all_others(name: str) -> None:
    check_named(name, signal.SIGKILL, LONG_SECONDS)


@pytest.mark.parametrize("name", first(MOMENTS))
def test_a_rank_that_stalls_is_named_by_all_others_after_the_deadline(name: str) -> None:
    check_named(name, signal.SIGSTOP, SHORT_SECONDS)
