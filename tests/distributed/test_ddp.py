"""DistributedDataParallel with compressed gradients, in real processes."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.training import (
    RECIPES,
    Trainer,
    backward,
    exchange_state,
    floats,
    loss_of,
    network,
    train,
    virtual,
    weights,
    wide_network,
)

MODES: list[dict[str, Any]] = [
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
]


def train_in_mode(identity: bool, steps: int, mode: dict[str, Any]) -> list[bytes]:
    return train(tw.dense() if identity else None, steps, ddp=mode)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("ranks", [1, 2])
def test_identity_codec_is_plain_ddp_bit_for_bit_with_one_and_two_ranks(
    ranks: int, mode: dict[str, Any]
) -> None:
    plain = run(train_in_mode, False, 50, mode, ranks=ranks)
    assert run(train_in_mode, True, 50, mode, ranks=ranks) == plain


def gradients_of_one_step(identity: bool) -> tuple[list[bytes], list[bytes]]:
    """The averaged gradients, and this rank's own."""
    net = network()
    backward(loss_of(net, 0, dist.get_rank()))
    own = [p.grad.numpy().tobytes() for p in net.parameters() if p.grad is not None]
    trainer = Trainer(tw.dense() if identity else None)
    backward(loss_of(trainer.model, 0, dist.get_rank()))
    mean = [p.grad.numpy().tobytes() for p in trainer.net.parameters() if p.grad is not None]
    return mean, own


@pytest.mark.parametrize("ranks", [3, 4])
def test_identity_codec_is_plain_ddp_but_for_the_order_of_sums(ranks: int) -> None:
    """A sum of n numbers is off by at most (n - 1) u times the sum of their magnitudes, u = 2^-24,
    whatever the order; each term was rounded once when it was divided by n. Two orders: twice."""
    plain, ours = (run(gradients_of_one_step, which, ranks=ranks) for which in (False, True))
    for tensor in range(len(plain[0][0])):
        magnitudes = sum(floats(own[tensor]).abs().double() for _, own in plain) / ranks
        difference = floats(plain[0][0][tensor]).double() - floats(ours[0][0][tensor]).double()
        assert (difference.abs() <= 2 * ranks * 2.0**-24 * magnitudes).all()


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("ranks", [3, 4])
def test_identity_codec_stays_near_plain_ddp(ranks: int, mode: dict[str, Any]) -> None:
    """Each step adds a difference of about n u relative to the gradient; training multiplies it by
    less than e over these 50 steps, so 50 * 2 * 4 * 2^-24 * e, or 7e-5 of the weights' norm."""
    plain = run(train_in_mode, False, 50, mode, ranks=ranks)[0]
    ours = run(train_in_mode, True, 50, mode, ranks=ranks)
    assert all(one == ours[0] for one in ours)
    for a, b in zip(plain, ours[0], strict=True):
        assert float((floats(a) - floats(b)).norm()) <= 7e-5 * float(floats(a).norm())


def train_recipe(name: str, steps: int, options: dict[str, Any]) -> list[bytes]:
    return train(RECIPES[name], steps, **options)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_S1_ranks_agree_and_are_what_the_virtual_cluster_computes(name: str, ranks: int) -> None:
    found = run(train_recipe, name, 8, {}, ranks=ranks)
    assert all(one == found[0] for one in found)
    assert found[0] == virtual(RECIPES[name], ranks, 8)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_S1_allgather_is_what_a_lossless_answer_gives(name: str, ranks: int) -> None:
    found = run(train_recipe, name, 8, {"exchange": "allgather"}, ranks=ranks)
    assert all(one == found[0] for one in found)
    one_way = tw.Recipe(RECIPES[name].push, RECIPES[name].push_feedback)
    assert found[0] == virtual(one_way, ranks, 8)


_SOME = tw.by_name({"[0-9].weight": tw.Float32()}, otherwise=tw.OneBit())
SOME_DENSE = tw.Recipe(_SOME, tw.Residual(), _SOME, tw.Residual())
"""Of the wide network most matrices, but no vectors and not all: every frame has both."""


def train_wide(recipe: tw.Recipe | None, options: dict[str, Any]) -> list[bytes]:
    return train(recipe, 8, net=wide_network(), ddp={"bucket_cap_mb": 1.2}, **options)


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
def test_large_dense_pieces_are_those_of_plain_ddp(exchange: str) -> None:
    plain = run(train_wide, None, {}, ranks=2)
    assert run(train_wide, tw.dense(), {"exchange": exchange}, ranks=2) == plain


@pytest.mark.parametrize("ranks", [2, 3])
def test_S1_large_dense_pieces_go_beside_compressed_ones(ranks: int) -> None:
    found = run(train_wide, SOME_DENSE, {}, ranks=ranks)
    assert found == [virtual(SOME_DENSE, ranks, 8, net=wide_network())] * ranks


def checksums_of_every_step(name: str) -> list[list[bytes]]:
    trainer = Trainer(RECIPES[name])
    return [trainer.train(range(step, step + 1)) for step in range(6)]


@pytest.mark.parametrize("name", RECIPES)
def test_S1_ranks_agree_after_every_step(name: str) -> None:
    found = run(checksums_of_every_step, name, ranks=4)
    assert all(one == found[0] for one in found)
    assert len({tuple(step) for step in found[0]}) == 6


def accumulate(split: bool) -> tuple[list[bytes], int]:
    trainer, rank = Trainer(RECIPES["1 bit"]), dist.get_rank()
    for step in range(3):
        first, second = ((step + more) for more in (0, 100))
        if split:
            with trainer.no_sync():
                backward(loss_of(trainer.model, first, rank) / 2)
            trainer.step(second, loss_of(trainer.model, second, rank) / 2)
        else:
            both = loss_of(trainer.model, first, rank) + loss_of(trainer.model, second, rank)
            trainer.step(first, both / 2)
    assert trainer.compression is not None
    return weights(trainer.net), trainer.compression.steps


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_S3_two_micro_batches_are_one_batch(ranks: int) -> None:
    (whole, _), (parts, steps) = (run(accumulate, split, ranks=ranks)[0] for split in (False, True))
    assert steps == 3
    for a, b in zip(whole, parts, strict=True):
        # Signs of sums that are nearly zero may differ by the order of additions.
        assert float((floats(a) - floats(b)).abs().mean()) < 1e-4


def residuals_within_no_sync() -> bool:
    trainer = Trainer(RECIPES["dgc"])
    trainer.step(0)
    before = exchange_state(trainer.compression)["push"]["2.weight"]
    with trainer.no_sync():
        backward(loss_of(trainer.model, 1, dist.get_rank()))
    after = exchange_state(trainer.compression)["push"]["2.weight"]
    return all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_S3_no_sync_touches_no_state(ranks: int) -> None:
    assert all(run(residuals_within_no_sync, ranks=ranks))
