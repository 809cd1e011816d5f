"""Recipes that send the optimizer's momentum, with real ranks and every exchange."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import Optimizer

import thinwire as tw
from tests.distributed.handles import all_finite, states
from tests.distributed.launch import run
from tests.distributed.training import (
    Trainer,
    backward,
    loss_of,
    momentum_sgd,
    network,
    plain_sgd,
    train,
    virtual,
    weights,
)
from thinwire.optim.shared_momentum import share_momentum
from thinwire.recipe import Recipe

STEPS = 12
Make = Callable[[nn.Module], Optimizer]


def nesterov(net: nn.Module) -> Optimizer:
    return torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=0.01, nesterov=True)


def adamw(net: nn.Module) -> Optimizer:
    matrices = [p for p in net.parameters() if p.ndim > 1]
    vectors = [p for p in net.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))


def adam_with_l2(net: nn.Module) -> Optimizer:
    return torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=0.01)


CASES: dict[str, tuple[Recipe, Make]] = {
    "1 bit": (tw.momentum_sgd(), momentum_sgd),
    "top-k": (tw.momentum_sgd(tw.TopK(0.02)), nesterov),
    "adam": (tw.adam(first=3, most_gap=4), adamw),
    "adam, top-k": (tw.adam(tw.TopK(0.05), first=3, most_gap=2), adam_with_l2),
}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_ranks_agree_and_are_what_the_virtual_cluster_computes(name: str, ranks: int) -> None:
    recipe, optimizer = CASES[name]
    found = run(partial(train, optimizer=optimizer), recipe, STEPS, ranks=ranks)
    assert found == [virtual(recipe, ranks, STEPS, optimizer=optimizer)] * ranks


@pytest.mark.parametrize(
    "options",
    [{"exchange": "allgather"}, {"module": True}, {"module": True, "exchange": "allgather"}],
    ids=str,
)
@pytest.mark.parametrize("name", CASES)
def test_replicas_are_equal_by_every_exchange(name: str, options: dict[str, Any]) -> None:
    recipe, optimizer = CASES[name]
    found = run(partial(train, optimizer=optimizer, **options), recipe, STEPS, ranks=2)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", CASES)
def test_replicas_are_equal_in_a_hierarchy(name: str) -> None:
    recipe, optimizer = CASES[name]
    task = partial(train, optimizer=optimizer, hierarchy="host")
    found = run(task, recipe, STEPS, ranks=4, env={"LOCAL_WORLD_SIZE": "2"})
    assert found == [found[0]] * 4


def saved(state: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def train_and_resume(recipe: Recipe, optimizer: Make) -> list[bytes]:
    first = Trainer(recipe, optimizer=optimizer)
    first.train(range(STEPS // 2))
    assert first.compression is not None
    files = [saved(part.state_dict()) for part in (first.net, first.optimizer, first.compression)]
    first.compression.close()
    second = Trainer(recipe, optimizer=optimizer)
    assert second.compression is not None
    net, trained, compression = (torch.load(file, weights_only=True) for file in files)
    second.net.load_state_dict(net)
    second.optimizer.load_state_dict(trained)
    second.compression.load_state_dict(compression)
    return second.train(range(STEPS // 2, STEPS))


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_is_the_same_bit_for_bit(name: str) -> None:
    recipe, optimizer = CASES[name]
    found = run(train_and_resume, recipe, optimizer, ranks=2)
    assert found == [virtual(recipe, 2, STEPS, optimizer=optimizer)] * 2


CLIPPED: dict[str, tuple[Recipe, Make]] = {
    "momentum": (tw.momentum_sgd(), momentum_sgd),
    "late": (tw.doublesqueeze(), plain_sgd),
    "full": (tw.clan(), plain_sgd),
}


def clip_after_the_exchange(name: str, norm: float, module: bool) -> list[str]:
    recipe, optimizer = CLIPPED[name]
    trainer = Trainer(recipe, optimizer=optimizer, module=module)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(4):
            backward(loss_of(trainer.model, step, 0))
            nn.utils.clip_grad_norm_(trainer.net.parameters(), norm)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize(("name", "what"), [("momentum", "momentum"), ("late", "was delayed")])
def test_a_script_that_clips_what_comes_back_is_told_once(
    name: str, what: str, module: bool
) -> None:
    for texts in run(clip_after_the_exchange, name, 1e-3, module, ranks=2):
        assert len(texts) == 1
        assert what in texts[0]
        assert "clip_norm" in texts[0]
    assert run(clip_after_the_exchange, name, 1e3, module, ranks=2) == [[], []]


def test_a_script_may_clip_gradients_that_came_in_full() -> None:
    assert run(clip_after_the_exchange, "full", 1e-3, False, ranks=2) == [[], []]


@pytest.mark.parametrize("name", ["momentum_sgd", "adam"])
def test_each_worker_clips_before_momentum_is_added(name: str) -> None:
    recipe, optimizer = {
        "momentum_sgd": (tw.momentum_sgd(tw.OneBit(), clip_norm=1e-3), momentum_sgd),
        "adam": (tw.adam(first=2, most_gap=2, clip_norm=1e-3), adamw),
    }[name]
    found = run(partial(train, optimizer=optimizer), recipe, STEPS, ranks=2)
    assert found == [virtual(recipe, 2, STEPS, optimizer=optimizer)] * 2


def train_scaled(recipe: Recipe, optimizer: Make, scale: float | None) -> list[bytes]:
    """Powers of two scale without a rounding, so the weights are those without a scaler."""
    if scale is None:
        return Trainer(recipe, optimizer=optimizer).train(range(STEPS))
    scaler = GradScaler("cpu", init_scale=scale, growth_interval=1000)
    trainer = Trainer(recipe, optimizer=optimizer, scaler=scaler)
    for step in range(STEPS):
        backward(scaler.scale(loss_of(trainer.model, step, dist.get_rank())))
        scaler.step(trainer.optimizer)
        scaler.update()
        trainer.optimizer.zero_grad()
    return weights(trainer.net)


@pytest.mark.parametrize("name", CASES)
def test_a_scaler_changes_nothing(name: str) -> None:
    recipe, optimizer = CASES[name]
    found = run(train_scaled, recipe, optimizer, 64.0, ranks=2)
    assert found == run(train_scaled, recipe, optimizer, None, ranks=2)


def overflow_once(recipe: Recipe, optimizer: Make) -> tuple[bool, bool]:
    """A step that is skipped leaves no trace, in the optimizer's momentum neither."""
    scaler = GradScaler("cpu", init_scale=1.0, growth_interval=1000)
    trainer = Trainer(recipe, optimizer=optimizer, scaler=scaler)
    trainer.train(range(5))
    before = states(trainer), weights(trainer.net), str(trainer.optimizer.state_dict())
    first = next(trainer.net.parameters())
    lost = math.inf if dist.get_rank() == 1 else 0.0
    backward(scaler.scale(loss_of(trainer.model, 5, 0) + first[0, 0] * lost))
    scaler.step(trainer.optimizer)
    scaler.update()
    trainer.optimizer.zero_grad()
    after = states(trainer), weights(trainer.net), str(trainer.optimizer.state_dict())
    trainer.train(range(6, 10))
    return before == after, all_finite(trainer)


@pytest.mark.parametrize("name", CASES)
def test_a_step_that_overflows_leaves_no_trace(name: str) -> None:
    recipe, optimizer = CASES[name]
    assert run(overflow_once, recipe, optimizer, ranks=2) == [(True, True)] * 2


def test_a_fused_optimizer_with_a_scaler_is_refused_when_it_steps() -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    source = share_momentum(tw.adam(first=1), optimizer, dict(net.named_parameters()))
    assert source is not None
    source.expect(1)
    net(torch.ones(1, 4)).sum().backward()
    optimizer.grad_scale = torch.ones(())  # type: ignore[attr-defined]  # as GradScaler does
    with pytest.raises(tw.ConfigError, match="use fused=False"):
        optimizer.step()


def train_unlike(optimizer: Make) -> tuple[str, list[bytes]]:
    """Without a recipe: it is chosen."""
    net = network()
    trained = optimizer(net)
    model = torch.nn.parallel.DistributedDataParallel(net)
    with tw.compress_ddp(model, optimizer=trained) as compression:
        x = torch.randn(8, 20)
        for _ in range(3):
            model(x).square().mean().backward()
            trained.step()
            trained.zero_grad()
        return compression.stats().recipe, weights(net)


@pytest.mark.parametrize(
    ("optimizer", "recipe"),
    [(momentum_sgd, "momentum_sgd()"), (adamw, "adam()")],
)
def test_without_a_recipe_the_one_that_fits_is_chosen(optimizer: Make, recipe: str) -> None:
    found = run(train_unlike, optimizer, ranks=2)
    assert [chosen for chosen, _ in found] == [recipe] * 2
    assert found[0] == found[1]
