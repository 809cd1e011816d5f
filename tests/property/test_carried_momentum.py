"""A 1-bit step with a momentum is the plain step on ``factor * momentum + gain * gradient``."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from tests.cases import ISAS, gradients, laws, same_bits
from thinwire import _native
from thinwire.testing.tensors import make

SIZES = (0, 1, 63, 64, 65, 1000, 100_003)
BLOCKS = (0, 64, 1024)


pytestmark = pytest.mark.usefixtures("restored_kernels")


class Residual:
    """The lazy residual of a tensor, and the payloads made with it."""

    def __init__(self, numel: int, scale: _native.SignScale, block: int) -> None:
        self.wanted = torch.zeros(numel)
        self.scales = torch.zeros(_native.onebit_scales(numel, block))
        self._settings = scale, block
        self._room = bytearray(_native.onebit_max_nbytes(numel, block))

    def step(
        self, gradient: Tensor, gain: float, keep: float, *momentum_and_factor: Tensor | float
    ) -> tuple[bytes, float]:
        lazy = self.wanted, self.wanted, self.scales, self.scales
        nbytes, squares = _native.onebit_step(
            gradient,
            *lazy,
            *self._settings,
            gain,
            keep,
            self._room,
            *momentum_and_factor,  # type: ignore[arg-type]  # none, or one of each
        )
        assert nbytes is not None
        return bytes(self._room[:nbytes]), squares


def check_steps(
    given_: list[tuple[Tensor, Tensor]], scale: _native.SignScale, block: int, factor: float
) -> None:
    numel = given_[0][0].numel()
    carrying, plain = Residual(numel, scale, block), Residual(numel, scale, block)
    for step, (gradient, momentum) in enumerate(given_):
        gain, keep = 1.0 - factor, 1.0 - 0.1 * step
        payload, squares = carrying.step(gradient, gain, keep, momentum, factor)
        sent = momentum * factor + gradient * gain
        assert payload == plain.step(sent, 1.0, keep)[0]
        assert same_bits(carrying.wanted, plain.wanted)
        assert same_bits(carrying.scales, plain.scales)
        # Of the gradient alone: what the step without a momentum says.
        assert squares == Residual(numel, scale, block).step(gradient, 1.0, 1.0)[1]


@laws
@given(
    numel=st.integers(0, 300) | st.sampled_from([63, 64, 65, 4097]),
    scale=st.sampled_from(list(_native.SignScale)),
    block=st.sampled_from(BLOCKS),
    factor=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    data=st.data(),
)
def test_steps_are_equal(
    numel: int, scale: _native.SignScale, block: int, factor: float, data: st.DataObject
) -> None:
    pairs = zip(data.draw(gradients(numel, 3)), data.draw(gradients(numel, 3)), strict=True)
    check_steps(list(pairs), scale, block, factor)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", [isa for isa in ISAS if _native.can_run(isa)])
def test_steps_are_equal_under_every_setting(isa: str, threads: int) -> None:
    assert _native.set_isa(isa)
    _native.set_threads(threads)
    for numel in SIZES:
        for block in BLOCKS:
            pairs = [
                (make("heavy-tailed", numel, seed=step), make("row-sparse", numel, seed=step + 9))
                for step in range(3)
            ]
            check_steps(pairs, _native.SignScale.L1, block, 0.9)


def test_a_momentum_of_zeros_changes_nothing() -> None:
    gradient, zeros = make("normal", 1000, seed=1), torch.zeros(1000)
    residuals = [Residual(1000, _native.SignScale.L1, 0) for _ in range(2)]
    assert residuals[0].step(gradient, 1.0, 1.0) == residuals[1].step(
        gradient, 1.0, 1.0, zeros, 0.9
    )
    assert same_bits(residuals[0].wanted, residuals[1].wanted)
