"""local/global_weights.py: what a network gets from a round, and what it lends."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import nn

import thinwire as tw
from tests.cases import same_bits
from thinwire.local.global_weights import GlobalWeights

RECIPE = tw.local_average(tw.Float32())


def bits(net: nn.Module) -> list[bytes]:
    return [p.detach().view(torch.uint8).numpy().tobytes() for p in net.parameters()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_that_learn_nothing_push_nothing(dtype: torch.dtype) -> None:
    """However the global weights move while a round is under way: what a worker that stands still
    has is always what it would have got."""
    net = nn.Linear(200, 50).to(dtype)
    weights = GlobalWeights(net, RECIPE)
    for step in range(20):
        changes = weights.changes(weights.local, goes_on=True)
        assert not any(bool(flat.any()) for flat in changes.flat.values()), step
        chance = torch.Generator().manual_seed(step)
        scale = 10.0 ** -(step % 5)
        weights.apply(
            {n: scale * torch.randn(x.shape, generator=chance) for n, x in _flat(weights)}
        )
        weights.merge(changes)


def _flat(weights: GlobalWeights) -> list[tuple[str, torch.Tensor]]:
    return [(name, weights[name]) for name in weights.local]


def test_float64_keeps_what_float32_has_not() -> None:
    net = nn.Linear(3, 2).double()
    weights = GlobalWeights(net, RECIPE)
    changes = weights.changes(weights.local, goes_on=True)
    with torch.no_grad():
        net.weight.add_(2.0**-40)
    expected = net.weight.detach().clone()
    weights.merge(changes)
    assert same_bits(net.weight.detach(), expected)


def test_a_state_has_the_networks_own_weights_also_while_it_lends_others() -> None:
    net = nn.Linear(4, 3)
    weights = GlobalWeights(net, RECIPE)
    with torch.no_grad():
        net.weight.add_(1.0)
    before = weights.state_dict()
    with weights.in_network(), weights.in_network():
        assert not torch.equal(net.weight, before["local"]["weight"])
        lent = weights.state_dict()
    assert torch.equal(lent["local"]["weight"], before["local"]["weight"])
    assert torch.equal(net.weight, before["local"]["weight"])


def test_an_error_gives_the_network_its_own_weights_back() -> None:
    net = nn.Linear(4, 3)
    weights = GlobalWeights(net, RECIPE)
    with torch.no_grad():
        net.weight.add_(1.0)
    own = bits(net)
    with suppress(ZeroDivisionError), weights.in_network():
        assert bits(net) != own
        raise ZeroDivisionError
    assert bits(net) == own


def test_what_needs_the_own_weights_is_refused_while_others_are_lent() -> None:
    weights = GlobalWeights(nn.Linear(4, 3), RECIPE)
    weights.check_own("a step")
    with weights.in_network(), pytest.raises(tw.ConfigError, match="a step within global_weights"):
        weights.check_own("a step")
