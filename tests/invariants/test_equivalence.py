"""Laws of equivalence, each under a number of its own, against torch.optim.SGD."""

# ruff: noqa: N802 - a test begins with the number of its law, as the law is written

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import thinwire as tw
from tests.cases import same_bits
from tests.cluster import Cluster, random_gradients

LR, M, SHAPE, STEPS = 0.05, 0.9, (20, 25), 50


def trained(
    recipe: tw.Recipe, workers: int, *, weight_decay: float = 0.0, nesterov: bool = False
) -> Tensor:
    """The parameter after all steps of ``tw.optim.SGD`` on exchanged gradients."""
    cluster = Cluster(recipe, SHAPE, workers=workers)
    parameter = torch.nn.Parameter(torch.ones(SHAPE))
    momentum = M if weight_decay else 0.0
    optimizer = tw.optim.SGD(
        [parameter], lr=LR, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov
    )
    for step, gradients in enumerate(random_gradients(STEPS, workers, SHAPE)):
        parameter.grad = cluster.exchange(gradients, step=step)
        optimizer.step()
    return parameter.detach()


def reference(
    workers: int,
    *,
    lr: float = LR,
    momentum: float = M,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> Tensor:
    """The parameter after the same steps of ``torch.optim.SGD`` on mean gradients."""
    parameter = torch.nn.Parameter(torch.ones(SHAPE))
    optimizer = torch.optim.SGD(
        [parameter], lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
    )
    for gradients in random_gradients(STEPS, workers, SHAPE):
        parameter.grad = torch.stack(gradients).mean(0)
        optimizer.step()
    return parameter.detach()


def everything_sent_sparsely(*, nesterov: bool, mask: bool) -> tw.Recipe:
    return tw.Recipe(tw.TopK(1.0), tw.chain(tw.Momentum(M, nesterov, mask), tw.Residual()))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_E1_unmasked_dgc_that_sends_everything_is_momentum_sgd(
    workers: int, nesterov: bool
) -> None:
    found = trained(everything_sent_sparsely(nesterov=nesterov, mask=False), workers)
    close(found, reference(workers, nesterov=nesterov))


def test_E1_with_one_worker_it_is_momentum_sgd_bit_for_bit() -> None:
    found = trained(everything_sent_sparsely(nesterov=False, mask=False), 1)
    assert same_bits(found, reference(1))


@pytest.mark.parametrize(("nesterov", "lr"), [(False, LR), (True, (1 + M) * LR)])
@pytest.mark.parametrize("workers", [1, 4])
def test_E2_masked_dgc_that_sends_everything_is_sgd_without_momentum(
    workers: int, nesterov: bool, lr: float
) -> None:
    found = trained(everything_sent_sparsely(nesterov=nesterov, mask=True), workers)
    close(found, reference(workers, lr=lr, momentum=0.0))


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("workers", [1, 4])
def test_E3_dense_bypass_is_momentum_sgd(workers: int, nesterov: bool) -> None:
    recipe = tw.dgc(ratio=1.0, momentum=M, nesterov=nesterov)
    cluster = Cluster(recipe, SHAPE, workers=workers)
    cluster.exchange(random_gradients(1, workers, SHAPE)[0], step=0)
    assert {push.wire_id for push in cluster.pushes} == {tw.Float32.wire_id}
    close(trained(recipe, workers), reference(workers, nesterov=nesterov))


@pytest.mark.parametrize("nesterov", [True, False])
def test_E4_weight_decay_branch_with_the_dense_path_is_classic_l2(nesterov: bool) -> None:
    recipe = tw.dgc(ratio=1.0, momentum=M, nesterov=nesterov)
    found = trained(recipe, 4, weight_decay=0.01, nesterov=nesterov)
    close(found, reference(4, nesterov=nesterov, weight_decay=0.01))
