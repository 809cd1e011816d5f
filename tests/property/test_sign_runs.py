"""A step that reads momentum as sign runs is the step that reads its floats, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from tests.cases import ISAS, gradients, laws, same_bits
from thinwire import _native
from thinwire.testing.tensors import make

RUN = 64


pytestmark = pytest.mark.usefixtures("restored_kernels")


def sign_runs_of(momentum: Tensor) -> bytearray | None:
    """What a step of Adam writes for this momentum."""
    numel = momentum.numel()
    runs = bytearray(_native.sign_runs_nbytes(numel))
    param, exp_avg = torch.zeros(2, numel)
    held = _native.adam_momentum_step(
        param,
        momentum,
        exp_avg,
        torch.ones(numel),
        decay=1.0,
        eps=1e-8,
        step_size=0.1,
        correction2_sqrt=1.0,
        l2=0.0,
        floor=0.1,
        block=1024,
        limit=1.0,
        runs=runs,
    )
    assert same_bits(exp_avg, momentum)
    return runs if held else None


def one_magnitude_a_run(x: Tensor) -> Tensor:
    """That of the first element of each run, with all signs, those of zeros too."""
    first = x[::RUN].abs().repeat_interleave(RUN)[: x.numel()]
    return torch.copysign(first, x)


def check_step(
    gradient: Tensor, momentum: Tensor, scale: _native.SignScale, block: int, factor: float
) -> None:
    numel, runs = gradient.numel(), sign_runs_of(momentum)
    assert runs is not None
    assert _native.sign_runs_agree(runs, momentum)
    made: list[tuple[bytes | None, float, Tensor, Tensor]] = []
    for given_ in ((momentum, factor), (None, factor, 1.0, runs)):
        wanted, scales = (
            make("normal", numel, seed=5),
            torch.zeros(_native.onebit_scales(numel, block)),
        )
        lazy = wanted, wanted, scales, scales
        room = bytearray(_native.onebit_max_nbytes(numel, block))
        nbytes, squares = _native.onebit_step(
            gradient, *lazy, scale, block, 1.0 - factor, 1.0, room, *given_
        )
        payload = None if nbytes is None else bytes(room[:nbytes])
        made.append((payload, squares, wanted, scales))
    floats, bits = made
    assert floats[:2] == bits[:2]
    assert same_bits(floats[2], bits[2])
    assert same_bits(floats[3], bits[3])


@laws
@given(
    numel=st.integers(1, 300) | st.sampled_from([63, 64, 65, 4097]),
    scale=st.sampled_from(list(_native.SignScale)),
    block=st.sampled_from([0, 64, 1024]),
    factor=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    data=st.data(),
)
def test_steps_are_equal(
    numel: int, scale: _native.SignScale, block: int, factor: float, data: st.DataObject
) -> None:
    gradient, momentum = data.draw(gradients(numel, 2))
    check_step(gradient, one_magnitude_a_run(momentum), scale, block, factor)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", [isa for isa in ISAS if _native.can_run(isa)])
def test_steps_are_equal_under_every_setting(isa: str, threads: int) -> None:
    assert _native.set_isa(isa)
    _native.set_threads(threads)
    for numel in (1, 63, 64, 65, 1000, 300_001):
        momentum = one_magnitude_a_run(make("row-sparse", numel, seed=numel))
        check_step(make("normal", numel, seed=1), momentum, _native.SignScale.L1, 1024, 0.9)


@laws
@given(numel=st.integers(2, 300), data=st.data())
def test_a_run_of_two_magnitudes_is_none(numel: int, data: st.DataObject) -> None:
    (x,) = data.draw(gradients(numel, 1))
    momentum = one_magnitude_a_run(x)
    place = data.draw(st.integers(0, numel - 1))
    assert sign_runs_of(momentum) is not None
    alone = place == numel - 1 and numel % RUN == 1
    momentum[place] = torch.nextafter(momentum[place], torch.tensor(math.inf))
    assert (sign_runs_of(momentum) is not None) == alone


def test_buffers_of_another_size_are_refused() -> None:
    x, lazy = torch.zeros(65), (torch.zeros(65), torch.zeros(65), torch.zeros(1), torch.zeros(1))
    room, wrong = bytearray(1000), bytearray(12)
    with pytest.raises(ValueError, match="arrays differ in size"):
        _native.onebit_step(
            x, *lazy, _native.SignScale.L1, 0, 1.0, 1.0, room, None, 0.9, 1.0, wrong
        )
    with pytest.raises(ValueError, match="arrays differ in size"):
        _native.sign_runs_agree(wrong, x)
