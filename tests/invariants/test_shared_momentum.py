"""Laws of recipes that send the optimizer's momentum, with every codec."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

import thinwire as tw
from tests.cases import CODECS
from thinwire.codec.base import Codec
from thinwire.feedback.momentum import AdamMomentum
from thinwire.gradient.pieces import Key
from thinwire.optim import adam
from thinwire.recipe import Recipe

WORKERS = 3
Make = Callable[[nn.Module], Optimizer]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))


def batch(step: int, worker: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + worker)
    x = torch.randn(8, 6, generator=generator)
    return x, (x[:, :3]).argmax(1)


class Run:
    def __init__(self, recipe: Recipe | None, make: Make, *, workers: int = WORKERS) -> None:
        self.net = network()
        self.optimizer = make(self.net)
        self.cluster = tw.VirtualCluster(self.net, self.optimizer, recipe, workers=workers)

    def step(self, step: int) -> None:
        def loss_of(worker: int) -> Tensor:
            x, y = batch(step, worker)
            return nn.functional.cross_entropy(self.net(x), y)

        self.cluster.step(loss_of)

    def train(self, *steps: int) -> list[Tensor]:
        for step in steps:
            self.step(step)
        return [p.detach().clone() for p in self.net.parameters()]


def sgd(**settings: Any) -> Make:
    return lambda net: torch.optim.SGD(
        net.parameters(), **{"lr": 0.05, "momentum": 0.9, **settings}
    )


def adamw(**settings: Any) -> Make:
    return lambda net: torch.optim.AdamW(net.parameters(), **{"lr": 3e-3, **settings})


def sharing(codec: Codec, stage: tw.SGDMomentum | AdamMomentum) -> Recipe:
    feedback = tw.chain(stage, tw.Residual())
    return Recipe(codec, feedback, codec, feedback)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_what_was_pushed_is_what_was_applied_and_what_is_left(codec: Codec) -> None:
    """Of momentum: mean residual + factor * momentum + mean gradient, before and after."""
    run = Run(sharing(codec, tw.SGDMomentum()), sgd())
    weight = run.net[0].weight  # type: ignore[index]
    owed = torch.zeros(weight.numel(), dtype=torch.float64)
    for step in range(6):
        buffer = run.optimizer.state.get(weight, {}).get("momentum_buffer")
        carried = torch.zeros_like(owed) if buffer is None else 0.9 * buffer.double().flatten()
        gradient = mean_gradient(run.net, step)
        run.step(step)
        assert run.cluster.last is not None
        answer = run.cluster.last.mean["0.weight"].double().flatten()
        left = residuals(run, "0.weight")
        missing = (owed + carried + gradient - answer - left).abs()
        scale = owed.abs() + carried.abs() + gradient.abs() + answer.abs() + left.abs()
        assert float(missing.max()) <= 1e-5 * float(scale.max())
        owed = left


def mean_gradient(net: nn.Module, step: int) -> Tensor:
    total = torch.zeros(40 * 6, dtype=torch.float64)
    for worker in range(WORKERS):
        net.zero_grad()
        x, y = batch(step, worker)
        nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        grad = net[0].weight.grad  # type: ignore[index]
        total += grad.double().flatten() / WORKERS
    return total


def residuals(run: Run, name: str) -> Tensor:
    """What the server owes, and the mean of what workers owe."""
    state = run.cluster.exchange.state_dict()
    workers, server = state["workers"], state["server"]
    assert isinstance(workers, list)
    assert isinstance(server, dict)
    owed = [worker[name]["residual"].double().flatten() for worker in workers]
    return server[name]["residual"].double().flatten() + torch.stack(owed).mean(0)


def test_with_the_identity_codec_it_is_ordinary_training_bit_for_bit() -> None:
    for recipe, make in (
        (tw.adam(tw.Float32()), adamw(weight_decay=0.1)),
        (tw.momentum_sgd(tw.Float32()), sgd(nesterov=True)),
        (sharing(tw.OneBit(), AdamMomentum(first=99, full="float32")), adamw()),
    ):
        ours, dense = Run(recipe, make), Run(tw.dense(), make)
        for x, y in zip(ours.train(*range(8)), dense.train(*range(8)), strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"nesterov": True},
        {"dampening": 0.5},
        {"weight_decay": 0.1},
        {"maximize": True, "lr": 0.01},
        {"momentum": 0.0},
        {"foreach": True, "weight_decay": 0.1, "nesterov": True},
    ],
    ids=str,
)
def test_all_settings_of_sgd_mean_what_they_mean_alone(settings: dict[str, Any]) -> None:
    """The momentum travels uncompressed: only roundings differ."""
    make = sgd(**settings)
    ours = Run(sharing(tw.Float32(), tw.SGDMomentum()), make).train(*range(10))
    for x, y in zip(ours, Run(tw.dense(), make).train(*range(10)), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.Adam, {"weight_decay": 0.1}),
        (torch.optim.AdamW, {"maximize": True, "lr": 1e-3}),
    ],
    ids=str,
)
def test_uncompressed_momentum_is_adam_with_a_variance_that_waits(
    make: Callable[..., Optimizer], settings: dict[str, Any]
) -> None:
    """Of Adam's own formula, with the variance changed in full steps only."""
    stage = AdamMomentum(first=3, most_gap=4, full="float32")
    run = Run(
        sharing(tw.Float32(), stage), lambda net: make(net.parameters(), **{"lr": 3e-3, **settings})
    )
    expected = Reference(run, stage)
    for step in range(12):
        expected.step(step)
        run.step(step)
        torch.testing.assert_close(run.net[0].weight, expected.weight, rtol=2e-5, atol=2e-6)  # type: ignore[index]


class Reference:
    """Compressed Adam of one matrix, in float64, with nothing lost."""

    def __init__(self, run: Run, stage: AdamMomentum) -> None:
        self.run, self.stage = run, stage
        self.weight = run.net[0].weight  # type: ignore[index]
        self.m = torch.zeros(40 * 6, dtype=torch.float64)
        self.v = torch.zeros(40 * 6, dtype=torch.float64)
        self.correction = 1.0

    def step(self, step: int) -> None:
        group = self.run.optimizer.param_groups[0]
        (b1, b2), rate, decay = group["betas"], group["lr"], group["weight_decay"]
        w = self.run.net[0].weight.detach().double().flatten()  # type: ignore[index]
        gradient = mean_gradient(self.run.net, step) * (-1.0 if group["maximize"] else 1.0)
        decoupled = isinstance(self.run.optimizer, torch.optim.AdamW)
        gradient = gradient if decoupled else gradient + decay * w
        self.m = b1 * self.m + (1 - b1) * gradient
        if self.stage.is_full(step):
            keep = max(b2 ** self.stage.gap(step), min(b2, adam.LEAST_DECAY))
            self.v = keep * self.v + (1 - keep) * gradient**2
            self.correction *= keep
        v = self.v / (1 - self.correction)
        if step >= self.stage.first:
            v = torch.maximum(v, adam.FLOOR * v.mean())
        steps = math.log(self.correction, b2)
        w = w * (1 - rate * decay) if decoupled else w
        move = rate * (self.m / (1 - b1**steps)) / (v.sqrt() + group["eps"])
        self.weight = (w - move).float().view(40, 6)


def test_full_steps_come_at_doubling_gaps() -> None:
    stage = AdamMomentum(first=4, most_gap=16)
    full = [step for step in range(120) if stage.is_full(step)]
    gaps = [after - before for before, after in pairwise(full)]
    assert full[:4] == [0, 1, 2, 3]
    assert gaps == [1, 1, 1, 2, 4, 8, 16, 16, 16, 16, 16, 16]
    assert [stage.gap(step) for step in full[1:]] == gaps
    assert all(AdamMomentum(first=1, most_gap=1).is_full(step) for step in range(50))
    assert not stage.travels(Key("bias", (9,)), step=4)
    assert stage.travels(Key("weight", (9, 9)), step=4)


def test_a_checkpoint_goes_from_dense_to_compressed_and_back() -> None:
    """The optimizer's state is AdamW's own: the same names, shapes and meaning."""
    dense = Run(tw.dense(), adamw())
    dense.train(*range(5))
    ours = Run(tw.adam(first=2, most_gap=2), adamw())
    move(dense, ours)
    ours.train(*range(5, 20))
    again = Run(tw.dense(), adamw())
    move(ours, again)
    before = float(loss(again.net))
    again.train(*range(20, 30))
    state = again.optimizer.state[again.net[0].weight]  # type: ignore[index]
    assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
    assert float(loss(again.net)) < before < float(loss(network()))


def move(source: Run, target: Run) -> None:
    file = io.BytesIO()
    torch.save((source.net.state_dict(), source.optimizer.state_dict()), file)
    file.seek(0)
    net, optimizer = torch.load(file, weights_only=True)
    target.net.load_state_dict(net)
    target.optimizer.load_state_dict(optimizer)


@torch.no_grad()
def loss(net: nn.Module) -> Tensor:
    x, y = batch(999, 0)
    return nn.functional.cross_entropy(net(x), y)


def test_elements_that_no_full_step_has_seen_only_decay() -> None:
    net = nn.Embedding(4, 64)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.5)
    cluster = tw.VirtualCluster(net, optimizer, tw.adam(first=1, most_gap=64), workers=1)
    before = net.weight.detach().clone()
    for step in range(6):
        full = AdamMomentum(first=1, most_gap=64).is_full(step)
        index = torch.tensor([0] if full else [0, 3])
        cluster.step(lambda worker, index=index: net(index).square().sum())  # type: ignore[misc]
    moved = net.weight.detach() / (before * 0.95**6)
    assert not torch.allclose(moved[0], torch.ones(64), rtol=1e-3)
    torch.testing.assert_close(moved[1:], torch.ones(3, 64), rtol=1e-5, atol=1e-5)


def test_a_parameter_that_is_trained_later_waits_for_a_full_step() -> None:
    run = Run(tw.adam(first=1, most_gap=2), adamw(weight_decay=0.0))
    run.step(0)
    weight = run.net[0].weight  # type: ignore[index]
    run.optimizer.state.pop(weight)
    before = weight.detach().clone()
    run.step(1)  # momentum
    assert torch.equal(weight, before)
    run.step(2)  # in full
    assert not torch.equal(weight, before)


def test_an_optimizer_that_is_not_theirs_is_refused() -> None:
    for recipe, make, words in (
        (tw.adam(), sgd(), "which SGD does not have"),
        (tw.momentum_sgd(tw.OneBit()), adamw(), "which AdamW does not have"),
        (tw.adam(), adamw(amsgrad=True), "amsgrad"),
    ):
        with pytest.raises(tw.ConfigError, match=words):
            Run(recipe, make)


def test_an_optimizer_that_is_attached_again_is_used_once() -> None:
    run = Run(tw.momentum_sgd(tw.OneBit()), sgd())
    run.train(0, 1)
    twin = Run(tw.momentum_sgd(tw.OneBit()), sgd())
    twin.train(0, 1)
    for each in (run, twin):
        each.cluster = tw.VirtualCluster(
            each.net, each.optimizer, tw.momentum_sgd(tw.OneBit()), workers=WORKERS
        )
    twin.cluster = tw.VirtualCluster(
        twin.net, twin.optimizer, tw.momentum_sgd(tw.OneBit()), workers=WORKERS
    )
    for x, y in zip(run.train(2, 3), twin.train(2, 3), strict=True):
        assert torch.equal(x, y)
