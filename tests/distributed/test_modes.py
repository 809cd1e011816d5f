"""What DDP users do, with compression: it must just work, or be refused in one sentence."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.training import (
    RECIPES,
    Branches,
    Trainer,
    backward,
    batch,
    exchange_state,
    floats,
    loss_of,
    momentum_sgd,
    network,
    plain_sgd,
    refused,
    train,
    virtual,
    weights,
    without_onednn,
)

ONE_BIT = RECIPES["1 bit"]


def train_branches() -> tuple[list[bytes], float]:
    trainer = Trainer(ONE_BIT, net=Branches(), ddp={"find_unused_parameters": True})
    rank = dist.get_rank()
    for step in range(6):
        trainer.step(step, trainer.model(batch(step, rank), both=rank == 0 and step < 3))
    push = exchange_state(trainer.compression)["push"]
    return weights(trainer.net), float(push["second.weight"]["residual"].norm())


def test_a_branch_that_only_one_rank_uses_is_finished_and_flushed() -> None:
    """P21. The residual of a gradient that came to an end is still sent."""
    (first, owed), (second, _) = run(train_branches, ranks=2)
    assert first == second
    assert owed > 0
    assert first[2] != weights(Branches())[2]


def train_with_frozen_steps() -> list[bytes]:
    trainer = Trainer(ONE_BIT, ddp={"find_unused_parameters": True})
    frozen = next(trainer.net.parameters())
    for step in range(6):
        frozen.requires_grad_(step not in (2, 3))
        trainer.step(step)
    return weights(trainer.net)


def train_with_frozen_start() -> list[bytes]:
    net = network()
    next(net.parameters()).requires_grad_(False)
    return Trainer(ONE_BIT, net=net).train(range(4))


@pytest.mark.parametrize("task", [train_with_frozen_steps, train_with_frozen_start])
def test_parameters_may_be_frozen_and_unfrozen(task: Callable[[], list[bytes]]) -> None:
    first, second = run(task, ranks=2)
    assert first == second
    frozen = task is train_with_frozen_start
    assert (first[0] == weights(network())[0]) == frozen


def models_that_are_deleted() -> int:
    alive = []
    for _ in range(3):
        trainer = Trainer(ONE_BIT)
        trainer.step(0)
        assert trainer.compression is not None
        alive.append(weakref.ref(trainer.compression))
        del trainer
        gc.collect()
    return sum(ref() is not None for ref in alive)


def test_a_model_that_is_deleted_leaves_nothing() -> None:
    assert run(models_that_are_deleted, ranks=2) == [0, 0]


def frozen_too_early() -> str:
    net = network()
    model = DistributedDataParallel(net)
    net[0].weight.requires_grad_(False)  # type: ignore[index]
    tw.compress_ddp(model, ONE_BIT)
    net[0].weight.requires_grad_(True)  # type: ignore[index]
    try:
        backward(loss_of(model, 0, dist.get_rank()))
    except (tw.ConfigError, RuntimeError) as error:
        return str(error)
    return "no error"


def test_a_parameter_frozen_before_compression_is_named() -> None:
    assert all("0.weight" in error for error in run(frozen_too_early, ranks=2, keep=False))


def train_uneven(recipe: Any) -> list[bytes]:
    trainer = Trainer(recipe)
    assert isinstance(trainer.model, DistributedDataParallel)
    with Join([trainer.model]):
        for step in range(4 + 2 * dist.get_rank()):
            trainer.step(step)
    return weights(trainer.net)


def test_ranks_may_have_different_numbers_of_batches() -> None:
    assert run(train_uneven, tw.dense(), ranks=2) == run(train_uneven, None, ranks=2)
    first, second = run(train_uneven, ONE_BIT, ranks=2)
    assert first == second


def train_dtype(dtype: torch.dtype) -> list[bytes]:
    with without_onednn():
        return Trainer(ONE_BIT, net=network().to(dtype)).train(range(5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_number_formats_train(dtype: torch.dtype) -> None:
    found = run(train_dtype, dtype, ranks=2)
    assert found[0] == found[1]
    with without_onednn():
        assert found[0] == virtual(ONE_BIT, 2, 5, net=network().to(dtype))


def train_two_models() -> tuple[list[bytes], list[bytes]]:
    first, second = Trainer(ONE_BIT), Trainer(RECIPES["dgc"])
    for step in range(5):
        for trainer in (first, second):
            trainer.step(step)
    return weights(first.net), weights(second.net)


def test_several_models_in_one_process() -> None:
    for found in run(train_two_models, ranks=2):
        assert found == (virtual(ONE_BIT, 2, 5), virtual(RECIPES["dgc"], 2, 5))


def train_in_subgroup() -> list[bytes]:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    own = groups[dist.get_rank() % 2]
    trainer = Trainer(ONE_BIT, ddp={"process_group": own})
    for step in range(5):
        trainer.step(step, loss_of(trainer.model, step, dist.get_group_rank(own, dist.get_rank())))
    return weights(trainer.net)


def test_subgroups_train_by_themselves() -> None:
    assert run(train_in_subgroup, ranks=4) == [virtual(ONE_BIT, 2, 5)] * 4


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.embed, self.out = nn.Linear(20, 20), nn.Linear(20, 20)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embed(x)))  # type: ignore[no-any-return]


def train_tied() -> list[bytes]:
    return Trainer(ONE_BIT, net=Tied()).train(range(5))


def test_tied_weights() -> None:
    assert run(train_tied, ranks=2) == [virtual(ONE_BIT, 2, 5, net=Tied())] * 2


def train_clipped(identity: bool) -> list[bytes]:
    trainer = Trainer(tw.dense() if identity else None)
    for step in range(5):
        backward(loss_of(trainer.model, step, dist.get_rank()))
        nn.utils.clip_grad_norm_(trainer.net.parameters(), 0.1)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=step % 2 == 0)
    return weights(trainer.net)


def test_gradients_may_be_clipped_after_the_exchange_and_zeroed_either_way() -> None:
    assert run(train_clipped, True, ranks=2) == run(train_clipped, False, ranks=2)


def train_compiled(outside: bool) -> tuple[list[bytes], list[str]]:
    net = network()
    compiled = nn.Sequential(net) if outside else torch.compile(net, backend="aot_eager")
    model = DistributedDataParallel(compiled)
    handle: nn.Module = torch.compile(model, backend="aot_eager") if outside else model  # type: ignore[assignment]
    optimizer = plain_sgd(net)
    compression = tw.compress_ddp(handle, ONE_BIT, optimizer=optimizer)
    for step in range(4):
        backward(loss_of(handle, step, dist.get_rank()))
        optimizer.step()
        optimizer.zero_grad()
    return weights(net), list(exchange_state(compression)["push"])


@pytest.mark.parametrize("outside", [False, True])
def test_compiled_modules_keep_their_names(outside: bool) -> None:
    (first, names), (second, _) = run(train_compiled, outside, ranks=2)
    assert first == second
    prefix = "0." if outside else ""
    assert names == [prefix + name for name, _ in network().named_parameters()]


def train_channels_last() -> list[bytes]:
    torch.manual_seed(8)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 5))
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    trainer = Trainer(ONE_BIT, net=net)
    for step in range(4):
        x = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
        trainer.step(step, trainer.model(x).square().mean())
    return [p.detach().contiguous().numpy().tobytes() for p in net.parameters()]


def test_channels_last() -> None:
    first, second = run(train_channels_last, ranks=2)
    assert first == second


def nesterov_sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True
    )


def train_taken_over(compressed: bool, nesterov: bool) -> list[bytes]:
    recipe = tw.dgc(1.0, momentum=0.9, nesterov=nesterov) if compressed else None
    return train(recipe, 20, optimizer=nesterov_sgd if nesterov else momentum_sgd)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("nesterov", [False, True])
def test_E4_dense_dgc_is_the_sgd_it_took_over(nesterov: bool, ranks: int) -> None:
    plain = run(train_taken_over, False, nesterov, ranks=ranks)[0]
    for a, b in zip(plain, run(train_taken_over, True, nesterov, ranks=ranks)[0], strict=True):
        torch.testing.assert_close(floats(a), floats(b), rtol=1e-4, atol=1e-6)


def refuse_momentum_set_again() -> str:
    trainer = Trainer(tw.dgc(0.02), optimizer=momentum_sgd)
    trainer.step(0)
    plain = torch.optim.SGD(copy.deepcopy(trainer.net).parameters(), lr=0.05, momentum=0.9)
    trainer.optimizer.load_state_dict(plain.state_dict())
    try:
        trainer.step(1)
    except tw.ConfigError as error:
        return str(error)
    return "no error"


def test_P2_momentum_that_comes_back_is_refused() -> None:
    assert all("were set again" in error for error in run(refuse_momentum_set_again, ranks=2))


def refusals() -> list[str]:
    sparse = nn.Sequential(nn.Embedding(9, 4, sparse=True))
    phase = nn.Linear(3, 3, dtype=torch.complex64)
    plain = DistributedDataParallel(network())
    adam = torch.optim.Adam(plain.parameters())
    return [
        refused(lambda: tw.compress_ddp(DistributedDataParallel(sparse), ONE_BIT)),
        refused(lambda: tw.compress_ddp(DistributedDataParallel(phase), ONE_BIT)),
        refused(lambda: tw.compress_ddp(network(), ONE_BIT)),
        refused(lambda: tw.compress_ddp(plain, tw.dgc(0.1))),
        refused(lambda: tw.compress_ddp(plain, tw.dgc(0.1), optimizer=adam)),
        refused(lambda: tw.compress_ddp(plain, ONE_BIT, exchange="ring")),
        refused(lambda: tw.compress_ddp(plain, ONE_BIT, hierarchy="host")),
    ]


def test_what_cannot_work_is_refused_with_a_sentence() -> None:
    expected = [
        "sparse=False",
        "complex",
        "expected DistributedDataParallel",
        "optimizer=",
        "Adam",
        "sharded, allgather",
        "LOCAL_WORLD_SIZE",
    ]
    for error, words in zip(run(refusals, ranks=1)[0], expected, strict=True):
        assert words in error


def train_with_clip(scope: str) -> list[bytes]:
    clip = tw.Clip(0.05, scope=scope)
    recipe = tw.Recipe(tw.OneBit(), tw.chain(clip, tw.Residual()), tw.OneBit(), tw.Residual())
    return train(recipe, 5)


@pytest.mark.parametrize("scope", ["model", "tensor"])
def test_gradients_may_be_clipped_before_compression(scope: str) -> None:
    clip = tw.Clip(0.05, scope=scope)
    recipe = tw.Recipe(tw.OneBit(), tw.chain(clip, tw.Residual()), tw.OneBit(), tw.Residual())
    found = run(train_with_clip, scope, ranks=2)
    assert found == [virtual(recipe, 2, 5)] * 2
    assert found[0] != virtual(tw.doublesqueeze(tw.OneBit()), 2, 5)
