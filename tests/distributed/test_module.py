"""Networks without DistributedDataParallel: the same training, encoded where gradients are made."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import gc
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import thinwire as tw
from tests.distributed.handles import all_finite, module_handle
from tests.distributed.launch import run
from tests.distributed.training import (
    RECIPES,
    Branches,
    Trainer,
    backward,
    batch,
    loss_of,
    momentum_sgd,
    network,
    plain_sgd,
    refused,
    train,
    virtual,
    weights,
    wide_network,
)
from thinwire.hooks import module_gradients as gradients
from thinwire.hooks.module_groups import neighbours

ONE_BIT = RECIPES["1 bit"]


def train_module(recipe: tw.Recipe, steps: int, options: dict[str, Any]) -> list[bytes]:
    return train(recipe, steps, module=True, **options)


def test_the_network_has_large_and_small_gradients() -> None:
    """Or these tests would see only half of the code."""
    numels = [parameter.numel() for parameter in network().parameters()]
    assert min(numels) < gradients.SMALL_NUMEL <= max(numels)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_S1_ranks_agree_and_are_what_the_virtual_cluster_computes(name: str, ranks: int) -> None:
    found = run(train_module, RECIPES[name], 8, {}, ranks=ranks)
    assert all(one == found[0] for one in found)
    assert found[0] == virtual(RECIPES[name], ranks, 8)


@pytest.mark.parametrize("name", RECIPES)
def test_S1_allgather_is_what_a_lossless_answer_gives(name: str) -> None:
    found = run(train_module, RECIPES[name], 8, {"exchange": "allgather"}, ranks=2)
    assert found[0] == found[1]
    one_way = tw.Recipe(RECIPES[name].push, RECIPES[name].push_feedback)
    assert found[0] == virtual(one_way, 2, 8)


def train_wide(module: bool, exchange: str) -> list[bytes]:
    net = wide_network()
    if not module:
        return train(None, 8, net=net)
    return train(tw.dense(), 8, net=net, module=True, exchange=exchange)


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
def test_identity_codec_is_plain_ddp_bit_for_bit(exchange: str) -> None:
    """Also of tensors that travel beside frames."""
    plain = run(train_wide, False, "", ranks=2)
    assert run(train_wide, True, exchange, ranks=2) == plain


def train_clipped() -> list[bytes]:
    recipe = tw.dgc(0.02, momentum=0.9, clip_norm=0.1)
    return train(recipe, 6, module=True, optimizer=momentum_sgd)


def test_clipping_knows_the_norm_of_the_whole_gradient() -> None:
    found = run(train_clipped, ranks=2)
    recipe = tw.dgc(0.02, momentum=0.9, clip_norm=0.1)
    assert found[0] == found[1] == virtual(recipe, 2, 6, optimizer=momentum_sgd)


def accumulate(module: bool) -> list[bytes]:
    """Two batches for each step."""
    trainer = Trainer(tw.dense() if module else None, module=module)
    for step in range(4):
        with trainer.no_sync():
            backward(loss_of(trainer.model, 2 * step, dist.get_rank()))
        trainer.step(2 * step + 1)
    return weights(trainer.net)


def test_gradients_of_several_batches_add_up_as_with_ddp() -> None:
    assert run(accumulate, True, ranks=2) == run(accumulate, False, ranks=2)


MAY_BE_UNUSED: dict[bool, dict[str, Any]] = {
    True: {"module": True},
    False: {"ddp": {"find_unused_parameters": True}},
}
"""How a step may leave parameters unused, without DDP and with it."""


def train_branches(module: bool) -> list[bytes]:
    """Rank 0 uses a branch more than rank 1, and after three steps no rank uses it."""
    trainer = Trainer(ONE_BIT, net=Branches(), **MAY_BE_UNUSED[module])
    rank = dist.get_rank()
    for step in range(6):
        trainer.step(step, trainer.model(batch(step, rank), both=rank == 0 and step < 3))
    return weights(trainer.net)


def test_P21_what_is_owed_for_unused_parameters_is_sent_as_with_ddp() -> None:
    assert run(train_branches, True, ranks=2) == run(train_branches, False, ranks=2)


def train_with_frozen_steps(module: bool) -> list[bytes]:
    trainer = Trainer(ONE_BIT, **MAY_BE_UNUSED[module])
    for step in range(6):
        for parameter in list(trainer.net.parameters())[2:4]:  # a large and a small one
            parameter.requires_grad_(step not in (2, 3))
        trainer.step(step)
    return weights(trainer.net)


def test_parameters_may_be_frozen_and_unfrozen_as_with_ddp() -> None:
    ours = run(train_with_frozen_steps, True, ranks=2)
    assert ours == run(train_with_frozen_steps, False, ranks=2)


def convolutions() -> nn.Module:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(72, 3))
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def train_channels_last(module: bool) -> list[bytes]:
    trainer = Trainer(tw.dense(), net=convolutions(), module=module)
    for step in range(4):
        x = batch(step, dist.get_rank())[:, :4, None, None].expand(-1, -1, 5, 5)
        x = x.contiguous(memory_format=torch.channels_last)
        trainer.step(step, trainer.model(x).square().mean())
    return weights(trainer.net)


def test_gradients_that_are_not_contiguous_are_averaged_as_with_ddp() -> None:
    assert run(train_channels_last, True, ranks=2) == run(train_channels_last, False, ranks=2)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Linear(20, 20), nn.Linear(20, 20)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh()).square().mean()  # type: ignore[no-any-return]


def train_tied(module: bool) -> list[bytes]:
    trainer = Trainer(ONE_BIT, net=Tied(), module=module)
    for step in range(4):
        backward(trainer.model(batch(step, dist.get_rank())))
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=False)
    return weights(trainer.net)


def test_tied_weights_and_gradients_that_are_kept_are_as_with_ddp() -> None:
    assert run(train_tied, True, ranks=2) == run(train_tied, False, ranks=2)


def train_in_a_group() -> list[bytes]:
    """Ranks 0 and 2 together, rank 1 alone."""
    groups = [dist.new_group([0, 2]), dist.new_group([1])]
    options = {"group": groups[dist.get_rank() % 2], "init_sync": False}
    return train(ONE_BIT, 4, module=True, **options)


def test_ranks_of_a_group_train_apart_from_others() -> None:
    first, second, third = run(train_in_a_group, ranks=3)
    assert first == third != second


def begin_differently(init_sync: bool) -> tuple[list[bytes], list[bytes]]:
    """The state before and after."""
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4))
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    nn.init.normal_(net[1].running_mean)  # type: ignore[arg-type]
    before = [tensor.numpy().tobytes() for tensor in net.state_dict().values()]
    tw.compress_module(net, ONE_BIT, init_sync=init_sync)
    return before, [tensor.numpy().tobytes() for tensor in net.state_dict().values()]


def test_all_ranks_begin_with_the_state_of_the_first() -> None:
    (first, a), (second, b) = run(begin_differently, True, ranks=2)
    assert first != second
    assert a == b == first


def test_ranks_may_be_left_with_states_of_their_own() -> None:
    assert all(before == after for before, after in run(begin_differently, False, ranks=2))


def disagree_about_the_beginning() -> str:
    return refused(lambda: tw.compress_module(network(), ONE_BIT, init_sync=dist.get_rank() == 0))


def test_ranks_that_begin_in_different_ways_are_refused() -> None:
    for text in run(disagree_about_the_beginning, ranks=2, keep=False):
        assert "all must be alike" in text


def overflow(exchange: str) -> tuple[bool, bool, int, list[bytes]]:
    trainer = Trainer(RECIPES["top-k"], module=True, exchange=exchange)
    trainer.train(range(2))
    first = next(trainer.net.parameters())
    lost = math.inf if dist.get_rank() == 1 else 0.0
    backward(loss_of(trainer.model, 2, dist.get_rank()) + first[0, 0] * lost)
    seen = not bool(first.grad is not None and first.grad.isfinite().all())
    finite = all_finite(trainer)
    trainer.optimizer.zero_grad()
    after = trainer.train(range(3, 5))
    return seen, finite, module_handle(trainer).overflowed_steps, after


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
def test_P10_all_ranks_see_an_overflow_of_one_and_no_state_is_spoilt(exchange: str) -> None:
    first, second = run(overflow, exchange, ranks=2)
    assert first == second
    assert first[:3] == (True, True, 1)


def train_without_the_handle() -> list[bytes]:
    net = network()
    optimizer = plain_sgd(net)
    tw.compress_module(net, ONE_BIT)
    gc.collect()
    for step in range(4):
        backward(loss_of(net, step, dist.get_rank()))
        optimizer.step()
        optimizer.zero_grad()
    return weights(net)


def test_a_script_need_not_keep_the_handle() -> None:
    first, second = run(train_without_the_handle, ranks=2)
    assert first == second == virtual(ONE_BIT, 2, 4)


def again_and_again() -> tuple[str, list[bytes]]:
    net = network()
    optimizer = plain_sgd(net)
    first = tw.compress_module(net, ONE_BIT)
    twice = refused(lambda: tw.compress_module(net, ONE_BIT))
    first.close()
    tw.compress_module(net, ONE_BIT)
    for step in range(4):
        backward(loss_of(net, step, dist.get_rank()))
        optimizer.step()
        optimizer.zero_grad()
    return twice, weights(net)


def test_a_network_is_compressed_once_or_again_after_close() -> None:
    for twice, trained in run(again_and_again, ranks=2):
        assert "compressed already" in twice
        assert trained == virtual(ONE_BIT, 2, 4)


def steps_within_nested_pauses() -> int:
    trainer = Trainer(ONE_BIT, module=True)
    with trainer.no_sync():
        with trainer.no_sync():
            pass
        backward(loss_of(trainer.model, 0, dist.get_rank()))
    return module_handle(trainer).steps


def test_a_pause_ends_with_the_outermost() -> None:
    assert run(steps_within_nested_pauses, ranks=2) == [0, 0]


def measured() -> tw.Stats:
    trainer = Trainer(ONE_BIT, module=True)
    trainer.train(range(5))
    return module_handle(trainer).stats()


def test_bytes_and_times_are_counted() -> None:
    for stats in run(measured, ranks=2):
        assert stats.steps == 5
        assert stats.dense_nbytes == 5 * sum(4 * p.numel() for p in network().parameters())
        assert stats.sent_nbytes < stats.dense_nbytes / 10
        assert min(stats.encode_seconds, stats.serve_seconds, stats.decode_seconds) > 0
        assert stats.exchange_seconds >= stats.exposed_seconds > 0


def test_groups_grow_until_they_are_large_enough() -> None:
    layers = {f"{number}": 133_000 for number in range(24)}
    assert [len(group) for group in neighbours(layers)] == [1, 2, 4, 8, 8, 1]
    assert [name for group in neighbours(layers) for name in group] == list(layers)
    assert neighbours({}) == []
    assert neighbours({"a": 0, "b": 0}) == [["a", "b"]]


def test_small_gradients_travel_with_the_last_group() -> None:
    sizes = {"a": 70_000, "b": 10, "c": 70_000, "d": 10, "e": 2_000_000, "f": 10}
    assert neighbours(sizes, set("bcdef")) == [["a", "b", "c", "d", "e"], ["f"]]
    assert neighbours({"b": 10, "c": 20}, set("bc")) == [["b", "c"]]
