"""A rank of a sharded network that dies or stalls: those of its replica name it, and all others."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch.distributed as dist

import thinwire as tw
from tests.distributed.fresh import fresh
from tests.distributed.test_fsdp import Sharded
from tests.slow import first

RANKS, FAULTY_STEP = 4, 2
LONG_SECONDS = 600.0
"""A deadline that no test waits for: what ends before was noticed, not timed out."""
SHORT_SECONDS = 10.0
COMPUTING_SECONDS = 6.0
"""More than a step takes before it waits, and than it takes to find out who is late."""
PATIENCE_SECONDS = 100.0

MOMENTS = ("between steps", "in forward", "in backward", "after backward")

_kept: list[Sharded] = []


def strike(trainer: Sharded, moment: str, number: int) -> None:
    def now(*_: object) -> None:
        os.kill(os.getpid(), number)

    if moment == "between steps":
        now()
    if moment == "in forward":
        trainer.net.blocks.register_forward_pre_hook(now)
    if moment == "in backward":
        trainer.net.blocks.register_full_backward_hook(now)
    trainer.step(trainer.loss(FAULTY_STEP))
    now()


def train_with(victim: int, moment: str, number: int, seconds: float) -> list[Any]:
    """The error that ends training, and how long its step took."""
    trainer = Sharded("1 bit", deadline_seconds=seconds)
    _kept.append(trainer)
    trainer.train(range(FAULTY_STEP))
    if dist.get_rank() == victim:
        strike(trainer, moment, number)
    for step in range(FAULTY_STEP, FAULTY_STEP + 3):
        began = time.monotonic()
        try:
            trainer.step(trainer.loss(step))
        except tw.ThinwireError as error:
            return [type(error).__name__, str(error), time.monotonic() - began]
    return []


def check_named(victim: int, moment: str, number: int, seconds: float) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with fresh(train_with, victim, moment, number, seconds, ranks=RANKS) as processes:
        for survivor in processes:
            if survivor.rank == victim:
                continue
            kind, text, took = survivor.result(until)
            assert kind == "WorkerLost"
            assert f"rank {victim} " in text
            assert took < seconds + COMPUTING_SECONDS


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", [1, 2])
def test_a_rank_that_dies_is_named_by_all_others(victim: int, moment: str) -> None:
    check_named(victim, moment, signal.SIGKILL, LONG_SECONDS)


@pytest.mark.parametrize("moment", first(MOMENTS))
@pytest.mark.parametrize("victim", [1, 2])
def test_a_rank_that_stalls_is_named_by_all_others(victim: int, moment: str) -> None:
    check_named(victim, moment, signal.SIGSTOP, SHORT_SECONDS)


def sleep_on(victim: int) -> list[Any]:
    """A rank that is alive, and busy with something else."""
    trainer = Sharded("1 bit", deadline_seconds=SHORT_SECONDS)
    _kept.append(trainer)
    trainer.train(range(FAULTY_STEP))
    if dist.get_rank() == victim:
        time.sleep(3 * SHORT_SECONDS)
        return []
    try:
        for step in range(FAULTY_STEP, FAULTY_STEP + 3):
            trainer.step(trainer.loss(step))
    except tw.ThinwireError as error:
        return [type(error).__name__, str(error)]
    return []


def test_a_rank_that_is_busy_elsewhere_is_named_by_all_others() -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with fresh(sleep_on, 3, ranks=RANKS) as processes:
        for survivor in processes[:3]:
            kind, text = survivor.result(until)
            assert kind == "WorkerLost"
            assert "rank 3 " in text
