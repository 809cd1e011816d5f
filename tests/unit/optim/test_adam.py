"""optim/adam.py: tw.optim.AdamW is torch's, with its arguments, state names and checkpoints."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

import thinwire as tw
from thinwire.optim import adam

SHAPES = ((20, 25), (25,), (1,), (0,), (3, 4, 5))


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def give(params: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in params:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)


def close(found: list[nn.Parameter], expected: list[nn.Parameter]) -> None:
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weight_decay": 0.0},
        {"weight_decay": 0.3, "betas": (0.5, 0.9), "eps": 1e-3},
        {"maximize": True},
        {"amsgrad": True},
        {"lr": torch.tensor(3e-3)},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_is_that_of_torch_but_for_roundings(
    settings: dict[str, Any], dtype: torch.dtype
) -> None:
    ours, theirs = parameters(dtype), parameters(dtype)
    settings = {"lr": 3e-3, **settings}
    pair = tw.optim.AdamW(ours, **settings), torch.optim.AdamW(theirs, **settings)
    for seed in range(20):
        for params, optimizer in zip((ours, theirs), pair, strict=True):
            give(params, seed)
            optimizer.step()
    close(ours, theirs)
    assert all(parameter.grad is not None for parameter in ours)


def test_a_scaler_skips_the_step_of_a_fused_one() -> None:
    """It leaves gradients scaled, and says by an attribute whether one overflowed."""
    parameter = nn.Parameter(torch.ones(70))
    optimizer = tw.optim.AdamW([parameter], lr=0.1, fused=True)
    scaler = GradScaler("cpu", init_scale=4.0)
    scaler.scale(parameter.sum() * float("inf")).backward()  # type: ignore[no-untyped-call]
    scaler.step(optimizer)
    assert torch.equal(parameter, torch.ones(70))


def test_checkpoints_go_to_torch_and_back() -> None:
    ours, theirs = parameters(), parameters()
    first = tw.optim.AdamW(ours, lr=3e-3)
    for seed in range(5):
        give(ours, seed)
        first.step()
    second = torch.optim.AdamW(theirs, lr=1.0)
    with torch.no_grad():
        for x, y in zip(ours, theirs, strict=True):
            y.copy_(x)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    third = tw.optim.AdamW(ours, lr=1.0)
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    for seed in range(5, 9):
        for params, optimizer in ((ours, third), (theirs, second)):
            give(params, seed)
            optimizer.step()
    close(ours, theirs)


def test_parameters_that_kernels_do_not_take_are_left_to_torch() -> None:
    mixed = [*parameters(), nn.Parameter(torch.ones(6, 4).t()), *parameters(torch.float64)]
    twins = [nn.Parameter(p.detach().clone()) for p in mixed]
    for params, make in ((mixed, tw.optim.AdamW), (twins, torch.optim.AdamW)):
        optimizer = make(params, lr=3e-3)
        for seed in range(3):
            give(params, seed)
            optimizer.step()
    close(mixed, twins)


def test_a_closure_recomputes_the_loss_with_gradients() -> None:
    parameter = nn.Parameter(torch.ones(70))
    optimizer = tw.optim.AdamW([parameter], lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    assert optimizer.step(closure) == 70.0
    assert bool((parameter < 1.0).all())


@pytest.mark.parametrize("block", [64, 1024])
@pytest.mark.parametrize("numel", [0, 1, 1000, 1024, 5000])
def test_the_floor_is_a_part_of_the_mean_of_a_block(numel: int, block: int) -> None:
    squares = torch.rand(numel, generator=torch.Generator().manual_seed(1)) ** 8
    raised = adam.floored(squares, block)
    for begin in range(0, numel, block):
        part = squares[begin : begin + block]
        expected = torch.maximum(part, part.mean() * adam.FLOOR)
        assert torch.equal(raised[begin : begin + block], expected)


@pytest.mark.parametrize("decoupled", [True, False])
def test_kernels_move_as_plain_operations_do(decoupled: bool, monkeypatch: Any) -> None:
    """The path of other devices: equal but for the order in which a block is added up."""
    settings = adam.AdamSettings(3e-3, (0.9, 0.95), 1e-8, 0.1, decoupled, maximize=False)
    found: list[Tensor] = []
    for native in (True, False):
        if not native:
            monkeypatch.setattr(adam, "is_native", lambda *tensors: False)
        generator = torch.Generator().manual_seed(2)
        p, m, v = (torch.randn(70, 50, generator=generator) for _ in range(3))
        state = adam.AdamState(torch.tensor(9.0), torch.zeros(70, 50), v.square())
        for _ in range(3):
            settings.apply_momentum(p, m, state)
            settings.apply_gradient(p, m, state, gap=8)
        found.append(p)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
