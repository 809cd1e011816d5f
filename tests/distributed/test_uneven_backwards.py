"""A rank that calls backward more often than others between optimizer steps is named at once.

Exchanges pair up whatever ranks send next, so that from there on all would average gradients of
different batches, and learn of it only at the end of training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from tests.distributed.fresh import fresh
from tests.distributed.launch import run
from tests.distributed.training import RECIPES, Trainer, backward, loss_of, network, weights

ONE_BIT = RECIPES["1 bit"]
DEADLINE_SECONDS = 60.0
PATIENCE_SECONDS = 100.0
UNEVEN_STEP = 2

TEAMS: list[tuple[int, dict[str, Any]]] = [
    (2, {}),
    (3, {"exchange": "allgather"}),
    (4, {"hierarchy": "host"}),
    (2, {"module": True}),
    (3, {"module": True, "exchange": "allgather"}),
]

_kept: list[Trainer] = []


def train_unevenly(uneven: int, act: str, options: dict[str, Any]) -> tuple[int, str]:
    """How many steps this rank has made when it gets the error, and its text."""
    trainer = Trainer(ONE_BIT, deadline_seconds=DEADLINE_SECONDS, **options)
    _kept.append(trainer)
    try:
        for step in range(6):
            backward(loss_of(trainer.model, step, dist.get_rank()))
            if (dist.get_rank(), step) == (uneven, UNEVEN_STEP):
                if act == "leaves out an optimizer step":
                    continue
                backward(loss_of(trainer.model, step, dist.get_rank()))
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
    except (tw.ConfigError, tw.WorkerLost) as error:
        return step, str(error)
    return 6, "no error"


@pytest.mark.parametrize(("ranks", "options"), TEAMS, ids=str)
@pytest.mark.parametrize("act", ["one backward more", "leaves out an optimizer step"])
def test_a_rank_that_is_a_backward_ahead_is_named_at_the_next_step(
    act: str, ranks: int, options: dict[str, Any]
) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    uneven = ranks - 1
    env = {"LOCAL_WORLD_SIZE": "2"} if "hierarchy" in options else {}
    with fresh(train_unevenly, uneven, act, options, ranks=ranks, env=env) as processes:
        for one in processes:
            step, text = one.result(until)
            assert step <= UNEVEN_STEP + 1, text
            assert f"step {UNEVEN_STEP + 1}" in text
            assert f"rank {uneven} " in text
            assert "no optimizer step" in text
            assert "no_sync" in text


def accumulate_everywhere(module: bool) -> str:
    """Several exchanges for one step, without no_sync: wasteful, but the same on all ranks."""
    trainer = Trainer(ONE_BIT, module=module)
    for step in range(6):
        backward(loss_of(trainer.model, step, dist.get_rank()))
        if step % 2:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
    return "fine"


def update_by_hand(module: bool) -> str:
    """No optimizer at all."""
    trainer = Trainer(ONE_BIT, module=module)
    for step in range(4):
        backward(loss_of(trainer.model, step, dist.get_rank()))
        with torch.no_grad():
            for parameter in trainer.net.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.01 * parameter.grad)
                parameter.grad = None
    return "fine"


def step_before_the_first_backward(module: bool) -> str:
    """As torch does it on one rank, to make an optimizer's state for a checkpoint."""
    trainer = Trainer(ONE_BIT, module=module)
    if dist.get_rank() == 0:
        trainer.optimizer.step()
    trainer.train(range(3))
    return "fine"


def optimize_parts(module: bool) -> str:
    """Rank 0 has one optimizer for all, others have several, as with sharded optimizers."""
    trainer = Trainer(ONE_BIT, module=module)
    parameters = list(trainer.net.parameters())
    cuts = [parameters] if dist.get_rank() == 0 else [parameters[:3], parameters[3:]]
    optimizers = [torch.optim.SGD(cut, lr=0.05) for cut in cuts]
    for step in range(4):
        backward(loss_of(trainer.model, step, dist.get_rank()))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return "fine"


def optimize_something_else(module: bool) -> str:
    """Rank 0 trains a network of its own beside."""
    trainer = Trainer(ONE_BIT, module=module)
    other = torch.optim.SGD(network().parameters(), lr=0.1)
    for step in range(4):
        backward(loss_of(trainer.model, step, dist.get_rank()))
        if dist.get_rank() == 0:
            other.step()
        if step % 2:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
    return "fine"


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize(
    "train",
    [
        accumulate_everywhere,
        update_by_hand,
        step_before_the_first_backward,
        optimize_parts,
        optimize_something_else,
    ],
)
def test_what_all_ranks_do_alike_is_fine(train: Callable[[bool], str], module: bool) -> None:
    assert run(train, module, ranks=2) == ["fine"] * 2


def train_after_join() -> list[bytes]:
    """Rank 1 has more batches in the first epoch, rank 0 in the second."""
    trainer = Trainer(ONE_BIT)
    assert isinstance(trainer.model, DistributedDataParallel)
    for epoch in range(3):
        with Join([trainer.model]):
            for step in range(3 + 2 * (dist.get_rank() == (epoch + 1) % 2)):
                trainer.step(step)
    return weights(trainer.net)


def test_ranks_with_different_numbers_of_batches_go_on_after_join() -> None:
    first, second = run(train_after_join, ranks=2)
    assert first == second


def train_sharded_optimizer() -> list[bytes]:
    # Not above: it warns of what torch itself deprecates, which tests take for an error.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    trainer = Trainer(ONE_BIT)
    trainer.optimizer = ZeroRedundancyOptimizer(
        trainer.net.parameters(), optimizer_class=torch.optim.SGD, lr=0.05
    )
    return trainer.train(range(4))


def test_each_rank_may_update_a_part_of_the_weights() -> None:
    first, second = run(train_sharded_optimizer, ranks=2)
    assert first == second
