"""optim/sgd.py: an ordinary optimizer, but for where its momentum acts."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor

import thinwire as tw


def with_gradient(value: float = 1.0) -> Tensor:
    parameter = torch.nn.Parameter(torch.full((3,), 2.0))
    parameter.grad = torch.full((3,), value)
    return parameter


def test_a_step_is_the_gradient_times_the_rate() -> None:
    parameter = with_gradient()
    tw.optim.SGD([parameter], lr=0.5, momentum=0.9).step()
    assert parameter.tolist() == [1.5] * 3


def test_without_a_gradient_nothing_moves() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    tw.optim.SGD([parameter], lr=0.5, weight_decay=0.1).step()
    assert parameter.tolist() == [1.0] * 3


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_decay_alone_is_torchs(momentum: float, nesterov: bool) -> None:
    """With no gradient at all, weight decay with its momentum is all that torch's SGD does too."""
    ours, theirs = with_gradient(0.0), with_gradient(0.0)
    settings = {"momentum": momentum, "weight_decay": 0.1, "nesterov": nesterov}
    one = tw.optim.SGD([ours], lr=0.5, momentum=momentum, weight_decay=0.1, nesterov=nesterov)
    two = torch.optim.SGD([theirs], lr=0.5, **settings)  # type: ignore[arg-type]  # mixed values
    for _ in range(20):
        one.step()
        two.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_the_closure_is_called_with_gradients_on() -> None:
    parameter = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = tw.optim.SGD([parameter], lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (parameter**2).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        return float(loss.detach())

    assert optimizer.step(closure) == 9.0
    assert parameter.item() == pytest.approx(3.0 - 0.1 * 6.0)


def test_groups_have_settings_of_their_own() -> None:
    fast, slow = with_gradient(), with_gradient()
    groups = [{"params": [fast], "lr": 1.0}, {"params": [slow], "weight_decay": 0.5}]
    tw.optim.SGD(groups, lr=0.1).step()
    assert fast.tolist() == [1.0] * 3
    assert slow.tolist() == pytest.approx([2.0 - 0.1 * (1.0 + 0.5 * 2.0)] * 3)


def test_state_is_saved_and_loaded() -> None:
    def optimizer_of(parameter: Tensor) -> tw.optim.SGD:
        return tw.optim.SGD([parameter], lr=0.1, momentum=0.9, weight_decay=0.1)

    straight, resumed = with_gradient(), with_gradient()
    one, two = optimizer_of(straight), optimizer_of(resumed)
    for _ in range(3):
        one.step()
        two.step()
    file = io.BytesIO()
    torch.save(two.state_dict(), file)
    file.seek(0)
    two = optimizer_of(resumed)
    two.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(3):
        one.step()
        two.step()
    assert torch.equal(straight, resumed)


def test_it_works_with_a_learning_rate_schedule() -> None:
    parameter = with_gradient()
    optimizer = tw.optim.SGD([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    optimizer.step()
    schedule.step()
    optimizer.step()
    assert parameter.tolist() == pytest.approx([2.0 - 1.0 - 0.1] * 3)
