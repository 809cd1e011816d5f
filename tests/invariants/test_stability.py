"""Error feedback delays updates, so the stable range of learning rates ends earlier with it.

On a quadratic with curvatures from 0.01 to 1, where dense SGD bears rates below 2. What this means
for real training, with numbers, is in docs/stability.md.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.recipe import Recipe

NUMEL = 256
CURVATURE = torch.logspace(-2, 0, NUMEL)


def left_over(
    recipe: Recipe, rate: float, *, momentum: float = 0.0, noise: float = 0.02, steps: int = 400
) -> float:
    """What is left of the loss after so many steps of four workers. Infinite if it blew up."""
    net = nn.Linear(NUMEL, 1, bias=False)
    net.weight.data.fill_(1.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum)
    cluster = tw.VirtualCluster(net, optimizer, recipe, workers=4, force=True)
    chance = torch.Generator().manual_seed(0)

    def loss_of(worker: int) -> Tensor:
        shaking = net.weight[0] * noise * torch.randn(NUMEL, generator=chance)
        return (CURVATURE * net.weight[0].square() / 2 + shaking).sum()

    for _ in range(steps):
        cluster.step(loss_of)
        left = float((CURVATURE * net.weight[0].detach().square()).sum() / CURVATURE.sum())
        if not left < 1e3:
            return math.inf
    return left


@pytest.mark.parametrize("codec", [tw.OneBit(), tw.TopK(0.01)], ids=["onebit", "topk"])
def test_a_rate_that_dense_training_bears_is_too_large_both_ways(
    codec: tw.OneBit | tw.TopK,
) -> None:
    recipe = tw.doublesqueeze(codec)
    assert left_over(tw.dense(), 1.0) < 0.01
    assert left_over(recipe, 1.0) > 1.0
    assert left_over(recipe, 0.1) < 0.1


def early(codec: tw.TopK, *, mask: bool) -> Recipe:
    """Both ways, with the momentum before the codec."""
    feedback = tw.chain(tw.Momentum(0.9, mask=mask), tw.Residual())
    return tw.Recipe(codec, feedback, codec, tw.Residual())


def test_momentum_after_the_server_is_worse_than_before_a_sparse_codec() -> None:
    """It is masking that makes the difference: without it, before is no better than after.

    Dense training bears the same rate with the same momentum.
    """
    codec, rate, noise = tw.TopK(0.05), 0.16, 0.3
    assert left_over(tw.dense(), rate, momentum=0.9, noise=noise) < 0.2
    assert left_over(early(codec, mask=True), rate, momentum=0.9, noise=noise) < 0.3
    assert left_over(tw.doublesqueeze(codec), rate, momentum=0.9, noise=noise) > 1.0
    assert left_over(early(codec, mask=False), rate, momentum=0.9, noise=noise) > 1.0
