"""A native step of Adam is the same operations on whole tensors, one at a time, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from tests.cases import ISAS, gradients, laws, same_bits
from tests.reference.adam import Adam, Factors
from thinwire import _native
from thinwire.testing.tensors import make

SIZES = (0, 1, 63, 64, 65, 1000, 100_003, 300_001)
"""Around runs; two threads share the last."""


pytestmark = pytest.mark.usefixtures("restored_kernels")


class Twins:
    """A parameter and its state, moved by the reference and by the kernels."""

    def __init__(self, param: Tensor) -> None:
        self.slow = Adam(param, torch.zeros_like(param), torch.zeros_like(param))
        self.quick = Adam(param.clone(), torch.zeros_like(param), torch.zeros_like(param))

    def step(
        self, gradient: Tensor, factors: Factors, *, beta1: float = 0.9, beta2: float = 0.999
    ) -> None:
        self.slow.step(gradient, beta1=beta1, beta2=beta2, **factors)
        quick = self.quick.param, gradient, self.quick.exp_avg, self.quick.exp_avg_sq
        _native.adam_step(*quick, beta1=beta1, beta2=beta2, **factors)
        self._check()

    def momentum_step(self, momentum: Tensor, factors: Factors, *, floor: float) -> None:
        before = momentum.clone()
        limit = 0.5 if floor else math.inf
        self.slow.momentum_step(momentum, floor=floor, limit=limit, **factors)
        quick = self.quick.param, momentum, self.quick.exp_avg, self.quick.exp_avg_sq
        _native.adam_momentum_step(*quick, floor=floor, block=1024, limit=limit, **factors)
        assert same_bits(momentum, before)
        self._check()

    def _check(self) -> None:
        for name, expected in vars(self.slow).items():
            assert same_bits(getattr(self.quick, name), expected), name


def factors_at(step: int, *, weight_decay: float, l2: float, eps: float = 1e-8) -> Factors:
    """Those of AdamW with a rate of 0.003 and the usual betas; ``step`` counts from 1."""
    return {
        "decay": 1 - 0.003 * weight_decay,
        "eps": eps,
        "step_size": 0.003 / (1 - 0.9**step),
        "correction2_sqrt": math.sqrt(1 - 0.999**step),
        "l2": l2,
    }


@laws
@given(
    numel=st.integers(0, 300) | st.sampled_from([63, 64, 65, 4097]),
    beta1=st.sampled_from([0.9, 0.0, 0.5]),
    beta2=st.sampled_from([0.999, 0.95, 0.0]),
    weight_decay=st.sampled_from([0.0, 0.01]),
    l2=st.sampled_from([0.0, 0.01]),
    data=st.data(),
)
def test_steps_are_equal(
    numel: int, beta1: float, beta2: float, weight_decay: float, l2: float, data: st.DataObject
) -> None:
    param, *given_ = data.draw(gradients(numel, 4))
    twins = Twins(param)
    for step, gradient in enumerate(given_, 1):
        factors = factors_at(step, weight_decay=weight_decay, l2=l2)
        twins.step(gradient, factors, beta1=beta1, beta2=beta2)


@laws
@given(
    numel=st.integers(0, 300) | st.sampled_from([63, 64, 65, 4097]),
    weight_decay=st.sampled_from([0.0, 0.01]),
    l2=st.sampled_from([0.0, 0.01]),
    floor=st.sampled_from([0.0, 0.1, 1.0]),
    eps=st.sampled_from([1e-8, 0.0]),
    data=st.data(),
)
def test_momentum_steps_are_equal(
    numel: int, weight_decay: float, l2: float, floor: float, eps: float, data: st.DataObject
) -> None:
    param, first, *given_ = data.draw(gradients(numel, 4))
    twins = Twins(param)
    twins.step(first, factors_at(1, weight_decay=0.0, l2=0.0))  # for some squares
    for step, momentum in enumerate(given_, 2):
        factors = factors_at(step, weight_decay=weight_decay, l2=l2, eps=eps)
        twins.momentum_step(momentum, factors, floor=floor)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", [isa for isa in ISAS if _native.can_run(isa)])
@pytest.mark.parametrize("l2", [0.0, 0.01])
def test_steps_are_equal_under_every_setting(l2: float, isa: str, threads: int) -> None:
    assert _native.set_isa(isa)
    _native.set_threads(threads)
    for numel in SIZES:
        twins = Twins(make("normal", numel, seed=numel))
        for step in (1, 2):
            factors = factors_at(step, weight_decay=0.01, l2=l2)
            twins.step(make("row-sparse", numel, seed=step), factors)
        for step, floor in ((3, 0.0), (4, 0.1)):
            factors = factors_at(step, weight_decay=0.01, l2=l2)
            twins.momentum_step(make("normal", numel, seed=step), factors, floor=floor)


def test_a_momentum_may_be_the_state_itself() -> None:
    factors = factors_at(5, weight_decay=0.01, l2=0.01)
    twins = Twins(make("normal", 1000, seed=1))
    twins.step(make("normal", 1000, seed=2), factors)
    own = twins.slow.exp_avg.clone()
    twins.slow.momentum_step(own, floor=0.1, block=1024, limit=math.inf, **factors)
    quick = twins.quick
    _native.adam_momentum_step(
        quick.param,
        quick.exp_avg,
        quick.exp_avg,
        quick.exp_avg_sq,
        floor=0.1,
        block=1024,
        limit=math.inf,
        **factors,
    )
    assert same_bits(quick.param, twins.slow.param)
    assert same_bits(quick.exp_avg, twins.slow.exp_avg)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_torch(weight_decay: float) -> None:
    """But for roundings, of which torch has some elsewhere."""
    param = torch.nn.Parameter(make("normal", 1000, seed=1))
    optimizer = torch.optim.AdamW([param], lr=0.003, weight_decay=weight_decay)
    twins = Twins(param.detach().clone())
    for step in range(1, 11):
        param.grad = make("normal", 1000, seed=step)
        optimizer.step()
        twins.step(param.grad, factors_at(step, weight_decay=weight_decay, l2=0.0))
    torch.testing.assert_close(twins.quick.param, param.detach(), rtol=1e-5, atol=1e-6)


def test_sizes_that_differ_are_refused() -> None:
    factors = factors_at(1, weight_decay=0.0, l2=0.0)
    for wrong in range(4):
        tensors = [torch.zeros(7 if i == wrong else 8) for i in range(4)]
        with pytest.raises(ValueError, match="arrays differ in size"):
            _native.adam_step(*tensors, beta1=0.9, beta2=0.999, **factors)
        with pytest.raises(ValueError, match="arrays differ in size"):
            _native.adam_momentum_step(*tensors, floor=0.1, block=1024, limit=math.inf, **factors)


@pytest.mark.parametrize("floor", [-1.0, math.nan])
def test_a_floor_that_is_none_is_refused(floor: float) -> None:
    tensors = [torch.zeros(8) for _ in range(4)]
    with pytest.raises(ValueError, match="floor is negative or nan"):
        _native.adam_momentum_step(
            *tensors,
            floor=floor,
            block=1024,
            limit=math.inf,
            **factors_at(1, weight_decay=0.0, l2=0.0),
        )
