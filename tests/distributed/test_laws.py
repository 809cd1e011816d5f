"""The laws, with real processes: nothing is lost, and nothing compressed is ordinary training.

Losses here are linear in the weights, so gradients are known whatever the weights are.
"""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import thinwire as tw
from tests.distributed.handles import owed
from tests.distributed.launch import run
from tests.distributed.training import Trainer, exchange_state, network, plain_sgd
from tests.slow import slow
from thinwire.exchange.resharding import ExchangeState
from thinwire.recipe import Recipe

RATE, STEPS = 0.05, 10
RANKS = [1, 2, 3, 4]
SHAPES = {name: parameter.shape for name, parameter in network().named_parameters()}
NAMES = list(SHAPES)


def gradient(name: str, step: int, rank: int) -> Tensor:
    seed = 10_000 * NAMES.index(name) + 100 * step + rank
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(seed))


class Linear(nn.Module):
    """The network's parameters, with a loss that has the gradients above."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, step: int, rank: int) -> Tensor:
        return torch.stack(
            [(p * gradient(n, step, rank)).sum() for n, p in self.inner.named_parameters()]
        ).sum()


@dataclass(frozen=True)
class Ran:
    """What one rank saw: the sum of what it applied, its last weights, and what it owes."""

    applied: dict[str, Tensor]
    weights: dict[str, Tensor]
    state: ExchangeState


def train_linear(recipe: Recipe, options: dict[str, Any]) -> Ran:
    """Several buckets, which DDP re-forms after the first step (P6)."""
    net = Linear()
    trainer = Trainer(recipe, net=net, **options)
    parameters = dict(net.inner.named_parameters())
    applied = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    for step in range(STEPS):
        loss = trainer.model(step, dist.get_rank())
        loss.backward()
        for name, p in parameters.items():
            assert p.grad is not None
            applied[name] += p.grad
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
    final = {name: p.detach().clone() for name, p in parameters.items()}
    return Ran(applied, final, exchange_state(trainer.compression))


def given(name: str, ranks: int, weights: list[float] | None = None) -> Tensor:
    """The sum over steps of the mean gradient, in float64; each step times its weight."""
    total = torch.zeros(1, dtype=torch.float64)
    for step in range(STEPS):
        for rank in range(ranks):
            weight = 1.0 if weights is None else weights[step]
            total = total + gradient(name, step, rank).double() * (weight / ranks)
    return total


def still_owed(found: list[Ran], name: str) -> Tensor:
    total = owed([one.state for one in found], f"inner.{name}", "residual")
    return total.reshape(found[0].applied[name].shape)


LOSSY = {
    "1 bit": tw.doublesqueeze(tw.OneBit()),
    "1 bit l2 blocks": tw.doublesqueeze(tw.OneBit("l2", 64)),
    "top-k": tw.doublesqueeze(tw.TopK(0.02)),
    "top-k int8": tw.doublesqueeze(tw.TopK(0.05, "int8")),
    "dither": tw.doublesqueeze(tw.Dither(3)),
    "float16": tw.doublesqueeze(tw.Float16()),
}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", LOSSY)
def test_I4_updates_and_what_is_owed_add_up_to_the_gradients(name: str, ranks: int) -> None:
    """DoubleSqueeze's law; with one rank it is I1, error feedback with both sides in one place."""
    found = run(train_linear, LOSSY[name], {}, ranks=ranks)
    for tensor in NAMES:
        total = found[0].applied[tensor] + still_owed(found, tensor)
        torch.testing.assert_close(total, given(tensor, ranks), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("ranks", [2, 4])
def test_I4_holds_for_allgather_between_hosts_and_without_ddp(ranks: int) -> None:
    recipe = LOSSY["top-k"]
    ways: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"exchange": "allgather"}, {}),
        ({"hierarchy": "host"}, HOST),
        ({"module": True}, {}),
        ({"module": True, "exchange": "allgather"}, {}),
    ]
    for options, env in ways:
        found = run(train_linear, recipe, options, ranks=ranks, env=env)
        for tensor in NAMES:
            total = found[0].applied[tensor] + still_owed(found, tensor)
            torch.testing.assert_close(total, given(tensor, ranks), rtol=1e-5, atol=1e-4)


HOST = {"LOCAL_WORLD_SIZE": "2"}


def dgc_recipe(*, ratio: float, mask: bool, nesterov: bool = False) -> Recipe:
    """The sparse path whatever the ratio."""
    feedback = tw.chain(tw.Momentum(0.9, nesterov, mask), tw.Residual())
    return tw.Recipe(tw.TopK(ratio), feedback, tw.Nonzero(), tw.NoFeedback())


def classic(ranks: int, *, momentum: float, nesterov: bool = False, rate: float = RATE) -> Any:
    """Weights of dense SGD on the same gradients, in float64."""
    net = network().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum, nesterov=nesterov)
    for step in range(STEPS):
        for name, p in net.named_parameters():
            p.grad = sum(gradient(name, step, r).double() for r in range(ranks)) / ranks  # type: ignore[assignment]
        optimizer.step()
    return dict(net.named_parameters())


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("nesterov", [False, True])
def test_I3_flushing_the_residual_gives_dense_momentum_sgd(nesterov: bool, ranks: int) -> None:
    recipe = dgc_recipe(ratio=0.02, mask=False, nesterov=nesterov)
    found = run(train_linear, recipe, {}, ranks=ranks)
    dense = classic(ranks, momentum=0.9, nesterov=nesterov)
    for tensor in NAMES:
        flushed = found[0].weights[tensor].double() - RATE * still_owed(found, tensor)
        torch.testing.assert_close(flushed, dense[tensor].detach(), rtol=1e-5, atol=1e-5)


def unmasked(name: str, ranks: int) -> Tensor:
    """The sum of all increments where nothing is masked."""
    return given(name, ranks, [sum(0.9**k for k in range(STEPS - s)) for s in range(STEPS)])


@pytest.mark.parametrize("ranks", RANKS)
def test_I2_increments_are_what_was_sent_and_what_is_owed(ranks: int) -> None:
    found = run(train_linear, dgc_recipe(ratio=0.02, mask=False), {}, ranks=ranks)
    for tensor in NAMES:
        total = found[0].applied[tensor] + still_owed(found, tensor)
        torch.testing.assert_close(total, unmasked(tensor, ranks), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("ranks", RANKS)
def test_masking_takes_momentum_away(ranks: int) -> None:
    """Not I2: the sum of masked increments is known to each worker alone (tests/invariants)."""
    found = run(train_linear, dgc_recipe(ratio=0.02, mask=True), {}, ranks=ranks)
    for tensor in NAMES:
        total = found[0].applied[tensor] + still_owed(found, tensor)
        assert float(total.norm()) < float(unmasked(tensor, ranks).norm())


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("nesterov", [False, True])
def test_E1_without_masking_ratio_one_is_momentum_sgd(nesterov: bool, ranks: int) -> None:
    recipe = dgc_recipe(ratio=1.0, mask=False, nesterov=nesterov)
    found = run(train_linear, recipe, {}, ranks=ranks)
    dense = classic(ranks, momentum=0.9, nesterov=nesterov)
    for tensor in NAMES:
        torch.testing.assert_close(
            found[0].weights[tensor].double(), dense[tensor].detach(), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("nesterov", [False, True])
def test_E2_with_masking_ratio_one_has_no_momentum(nesterov: bool, ranks: int) -> None:
    recipe = dgc_recipe(ratio=1.0, mask=True, nesterov=nesterov)
    found = run(train_linear, recipe, {}, ranks=ranks)
    dense = classic(ranks, momentum=0.0, rate=RATE * (1.9 if nesterov else 1.0))
    for tensor in NAMES:
        torch.testing.assert_close(
            found[0].weights[tensor].double(), dense[tensor].detach(), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("ranks", RANKS)
def test_E3_the_dense_bypass_is_momentum_sgd(ranks: int) -> None:
    found = run(train_linear, tw.dgc(1.0, momentum=0.9), {}, ranks=ranks)
    dense = classic(ranks, momentum=0.9)
    for tensor in NAMES:
        torch.testing.assert_close(
            found[0].weights[tensor].double(), dense[tensor].detach(), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("ranks", RANKS)
def test_E5_the_identity_codec_is_sgd_and_keeps_nothing(ranks: int) -> None:
    found = run(train_linear, tw.doublesqueeze(tw.Float32()), {}, ranks=ranks)
    dense = classic(ranks, momentum=0.0)
    for tensor in NAMES:
        assert not still_owed(found, tensor).any()
        torch.testing.assert_close(
            found[0].weights[tensor].double(), dense[tensor].detach(), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", LOSSY)
def test_E10_ranks_that_serve_are_a_server(name: str, ranks: int) -> None:
    found = run(train_linear, LOSSY[name], {}, ranks=ranks)
    net = Linear()
    cluster = tw.VirtualCluster(net, plain_sgd(net), LOSSY[name], workers=ranks)
    for step in range(STEPS):
        cluster.step(partial(net, step))
    for tensor, parameter in net.inner.named_parameters():
        for one in found:
            assert torch.equal(one.weights[tensor], parameter)


def train_rescaled() -> tuple[dict[str, Tensor], ExchangeState]:
    feedback = tw.Residual(rescale=True)
    codec = tw.TopK(0.05)
    net = Linear()
    trainer = Trainer(tw.Recipe(codec, feedback, codec, feedback), net=net)
    for step, rate in enumerate(RATES):
        trainer.optimizer.param_groups[0]["lr"] = rate
        trainer.step(step, trainer.model(step, dist.get_rank()))
    weights = {n: p.detach().clone() for n, p in net.inner.named_parameters()}
    return weights, exchange_state(trainer.compression)


RATES = [0.1, 0.1, 0.5, 0.05, 0.05, 0.3, 0.3, 0.01, 0.2, 0.2]


@pytest.mark.parametrize("ranks", [1, 2, slow(3), slow(4)])
def test_I5_a_rescaled_residual_conserves_displacement_for_any_schedule(ranks: int) -> None:
    found = run(train_rescaled, ranks=ranks)
    for tensor, start in network().named_parameters():
        left = owed([state for _, state in found], f"inner.{tensor}", "residual")
        moved = found[0][0][tensor].double() - start.detach().double()
        total = moved - RATES[-1] * left.reshape(moved.shape)
        torch.testing.assert_close(total, -given(tensor, ranks, RATES), rtol=1e-5, atol=1e-4)


class Sometimes(nn.Module):
    """Two parameters, of which no rank uses the second in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(300))
        self.second = nn.Parameter(torch.zeros(300))

    def forward(self, step: int, rank: int) -> Tensor:
        loss = (self.first * _noise(step, rank)).sum()
        return loss if step in UNUSED else loss + (self.second * _noise(step + 50, rank)).sum()


UNUSED = (3, 4, 5)


def _noise(step: int, rank: int) -> Tensor:
    return torch.randn(300, generator=torch.Generator().manual_seed(100 * step + rank))


def train_sometimes(recipe: Recipe, set_to_none: bool) -> tuple[Tensor, Tensor, ExchangeState]:
    net = Sometimes()
    trainer = Trainer(recipe, net=net, ddp={"find_unused_parameters": True})
    applied = torch.zeros(300, dtype=torch.float64)
    given_ = torch.zeros(300, dtype=torch.float64)
    for step in range(8):
        trainer.model(step, dist.get_rank()).backward()
        assert net.second.grad is not None
        applied += net.second.grad
        given_ += 0.0 if step in UNUSED else _noise(step + 50, dist.get_rank())
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=set_to_none)
    return applied, given_, exchange_state(trainer.compression)


@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("name", ["1 bit", "top-k"])
def test_I4_holds_for_parameters_that_no_rank_uses_in_some_steps(
    name: str, set_to_none: bool
) -> None:
    """DDP throws away what it is given for them, though it is what was owed (P21)."""
    found = run(train_sometimes, LOSSY[name], set_to_none, ranks=2)
    left = owed([state for _, _, state in found], "second", "residual")
    given_ = sum(one for _, one, _ in found) / 2
    torch.testing.assert_close(found[0][0] + left, given_, rtol=1e-5, atol=1e-4)


def same_gradient() -> bool:
    net = Linear()
    trainer = Trainer(tw.dense(), net=net)
    trainer.model(0, 0).backward()
    return all(
        p.grad is not None and torch.equal(p.grad, gradient(name, 0, 0))
        for name, p in net.inner.named_parameters()
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_P1_equal_gradients_have_themselves_as_mean(ranks: int) -> None:
    assert all(run(same_gradient, ranks=ranks))
