"""Learning rates from outside are set in all groups of an optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thinwire.errors import ConfigError
from thinwire.replay.target import Rates


def optimizer_with(*rates: float) -> torch.optim.SGD:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, lr=1.0)


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def test_each_version_has_its_rate() -> None:
    optimizer = optimizer_with(0.1)
    rates = Rates(optimizer, {1: 0.3, 2: 0.2})
    for version, rate in ((1, 0.3), (2, 0.2)):
        rates.set(version)
        assert rates_of(optimizer) == [rate]


def test_a_fixed_rate_is_for_every_version() -> None:
    optimizer = optimizer_with(0.1)
    Rates(optimizer, {}, 0.5).set(9)
    assert rates_of(optimizer) == [0.5]


def test_other_groups_keep_their_ratio_to_the_first() -> None:
    optimizer = optimizer_with(0.5, 0.1, 0.5)
    rates = Rates(optimizer, {1: 0.25, 2: 0.5})
    rates.set(1)
    assert rates_of(optimizer) == [0.25, 0.05, 0.25]
    rates.set(2)
    assert rates_of(optimizer) == [0.5, 0.1, 0.5]


def test_the_ratio_is_that_of_the_initial_rates() -> None:
    optimizer = optimizer_with(0.0, 0.0)
    for group, initial in zip(optimizer.param_groups, (0.5, 0.1), strict=True):
        group["initial_lr"] = initial
    Rates(optimizer, {1: 0.25}).set(1)
    assert rates_of(optimizer) == [0.25, 0.05]


def test_a_rate_that_is_not_given_leaves_all_as_it_is() -> None:
    optimizer = optimizer_with(0.5, 0.1)
    Rates(optimizer, {1: 0.0}).set(1)
    assert rates_of(optimizer) == [0.5, 0.1]


def test_a_tensor_stays_the_same_tensor() -> None:
    optimizer = optimizer_with(0.5)
    rate = optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
    Rates(optimizer, {1: 0.25}).set(1)
    assert rate.item() == 0.25


def test_no_ratio_to_zero() -> None:
    with pytest.raises(ConfigError, match="different learning rates, and that of the first is 0"):
        Rates(optimizer_with(0.0, 0.1), {1: 0.25}).set(1)
