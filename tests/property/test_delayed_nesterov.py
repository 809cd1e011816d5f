"""DelayedNesterov is its formula, and ordinary Nesterov momentum where nothing is delayed."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import thinwire as tw
from tests.cases import laws, same_bits
from tests.reference.delayed_nesterov import DelayedNesterov as Slow

RATES = st.sampled_from([0.05, 0.7, 1.0])
MOMENTA = st.sampled_from([0.0, 0.5, 0.9])
UPDATES = st.lists(
    st.lists(st.floats(-4.0, 4.0, width=32), min_size=3, max_size=3), min_size=1, max_size=30
)


def moved(optimizer: torch.optim.Optimizer, parameter: Tensor, updates: list[list[float]]) -> None:
    for update in updates:
        parameter.grad = torch.tensor(update)
        optimizer.step()


def parameter_of(values: list[float]) -> Tensor:
    return torch.nn.Parameter(torch.tensor(values))


@laws
@given(UPDATES, RATES, MOMENTA, st.integers(1, 5))
def test_it_is_the_formula(
    updates: list[list[float]], lr: float, momentum: float, delay: int
) -> None:
    first = [1.0, -2.0, 0.25]
    quick = parameter_of(first)
    moved(tw.optim.DelayedNesterov([quick], lr=lr, momentum=momentum, delay=delay), quick, updates)
    slow = [Slow(x, lr, momentum, delay) for x in first]
    for update in updates:
        for one, g in zip(slow, update, strict=True):
            one.step(g)
    np.testing.assert_allclose(quick.detach().numpy(), [x.x for x in slow], rtol=1e-4, atol=1e-3)


@laws
@given(UPDATES, RATES, st.sampled_from([0.5, 0.9]))
def test_without_delay_it_is_torchs_nesterov_bit_for_bit(
    updates: list[list[float]], lr: float, momentum: float
) -> None:
    """The sign of a zero, too."""
    first = [1.0, -0.0, 0.0]
    ours, theirs = parameter_of(first), parameter_of(first)
    moved(tw.optim.DelayedNesterov([ours], lr=lr, momentum=momentum), ours, updates)
    sgd = torch.optim.SGD([theirs], lr=lr, momentum=momentum, nesterov=True)
    moved(sgd, theirs, updates)
    assert same_bits(ours.detach(), theirs.detach())


@laws
@given(UPDATES, st.integers(1, 4), st.integers(1, 8))
def test_equal_shares_of_an_update_move_as_far_as_the_whole_one(
    updates: list[list[float]], shares: int, versions: int
) -> None:
    """What the delay is for: momentum counts what ``shares`` workers send one by one as once."""
    whole, parts = parameter_of([0.0] * 3), parameter_of([0.0] * 3)
    updates = updates[:versions]
    moved(torch.optim.SGD([whole], lr=0.7, momentum=0.9, nesterov=True), whole, updates)
    split = [[x / shares for x in update] for update in updates for _ in range(shares)]
    moved(tw.optim.DelayedNesterov([parts], delay=shares), parts, split)
    torch.testing.assert_close(parts.detach(), whole.detach(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_its_state_is_in_a_checkpoint(at: int) -> None:
    """Also between two steps with momentum, where a sum is kept."""
    updates = [[float(i), 1.0, -0.5 * i] for i in range(8)]
    whole, second = parameter_of([1.0] * 3), parameter_of([1.0] * 3)
    moved(tw.optim.DelayedNesterov([whole], delay=3), whole, updates)
    first = tw.optim.DelayedNesterov([second], delay=3)
    moved(first, second, updates[:at])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    again = tw.optim.DelayedNesterov([second], delay=1)
    again.load_state_dict(torch.load(file, weights_only=True))
    moved(again, second, updates[at:])
    assert same_bits(whole.detach(), second.detach())


def test_without_a_gradient_nothing_moves() -> None:
    parameter = parameter_of([1.0])
    tw.optim.DelayedNesterov([parameter]).step()
    assert parameter.tolist() == [1.0]
