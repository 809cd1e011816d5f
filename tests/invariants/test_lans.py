"""The laws of LANS, each under a number of its own."""

# ruff: noqa: N802 - a test begins with the number of its law, as the law is written

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

import thinwire as tw
from tests.reference.lans import Lans

LR, DECAY, STEPS = 0.01, 0.01, 59
SHAPES = ((20, 25), (25,), (1,), (3, 4, 5))
BOUNDS = (None, (0.5, 2.0))


def blocks(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    drawn = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES)
    return [torch.nn.Parameter(x.to(dtype)) for x in drawn]


def gradients(steps: int = STEPS) -> Iterator[list[Tensor]]:
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        yield [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def give(parameters: list[Tensor], step_gradients: list[Tensor], *, scale: float = 1.0) -> None:
    for parameter, gradient in zip(parameters, step_gradients, strict=True):
        parameter.grad = (gradient * scale).to(parameter.dtype)


@pytest.mark.parametrize("normalize_grad", [True, False])
def test_E7_without_beta1_it_is_the_normalised_step_along_c(normalize_grad: bool) -> None:
    eps, beta2 = 1e-6, 0.999
    parameters = blocks()
    optimizer = tw.optim.LANS(
        parameters, LR, betas=(0.0, beta2), weight_decay=DECAY, normalize_grad=normalize_grad
    )
    expected = [parameter.detach().clone() for parameter in parameters]
    squares = [torch.zeros_like(x) for x in expected]
    for t, step_gradients in enumerate(gradients(), start=1):
        give(parameters, step_gradients)
        optimizer.step()
        for i, drawn in enumerate(step_gradients):
            g = drawn / (drawn.norm() + eps) if normalize_grad else drawn
            squares[i] = beta2 * squares[i] + (1 - beta2) * g**2
            c = g / ((squares[i] / (1 - beta2**t)).sqrt() + eps) + DECAY * expected[i]
            expected[i] = expected[i] - LR * expected[i].norm() * c / c.norm()
    torch.testing.assert_close([p.detach() for p in parameters], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("normalize_grad", [True, False])
def test_E7_at_the_first_step_both_terms_are_equal(normalize_grad: bool) -> None:
    """So the first step does not depend on beta1, which only says how they are blended."""
    by_beta1 = []
    for beta1 in (0.0, 0.5, 0.9, 0.999):
        parameters = blocks()
        give(parameters, next(gradients(1)))
        settings = {"betas": (beta1, 0.999), "normalize_grad": normalize_grad}
        tw.optim.LANS(parameters, LR, **settings).step()  # type: ignore[arg-type]  # mixed values
        by_beta1.append([parameter.detach() for parameter in parameters])
    for found in by_beta1[1:]:
        torch.testing.assert_close(found, by_beta1[0], rtol=1e-12, atol=1e-14)


def test_E7_at_the_first_step_both_terms_of_the_reference_are_equal() -> None:
    for parameter, gradient in zip(blocks(), next(gradients(1)), strict=True):
        reference = Lans(parameter.detach().numpy().copy(), LR)
        reference.step(gradient.numpy())
        assert abs(reference.r - reference.c).max() <= 1e-12


def trained(
    scales: Sequence[float], dtype: torch.dtype, *, normalize_grad: bool = True
) -> list[Tensor]:
    """The parameters after all steps, the gradients of step t scaled by ``scales[t % len]``."""
    parameters = blocks(dtype)
    optimizer = tw.optim.LANS(parameters, LR, normalize_grad=normalize_grad)
    for step, step_gradients in enumerate(gradients()):
        give(parameters, step_gradients, scale=scales[step % len(scales)])
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("scales", [(1024.0,), (3.7,), (1.0, 65536.0, 12.0)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)], ids=str
)
def test_E8_the_scale_of_the_gradients_does_not_matter(
    scales: tuple[float, ...], dtype: torch.dtype, tolerance: float
) -> None:
    """Not even one that changes from step to step. What is left is eps beside the norm."""
    found, expected = trained(scales, dtype), trained((1.0,), dtype)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_E8_without_normalisation_it_does_matter() -> None:
    one, other = (
        trained(scales, torch.float64, normalize_grad=False) for scales in ((1.0,), (1.0, 64.0))
    )
    assert not torch.allclose(one[0], other[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("normalize_grad", [True, False])
@pytest.mark.parametrize(("dtype", "slack"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_E9_a_step_is_at_most_the_rate_times_the_norm(
    bounds: tuple[float, float] | None, normalize_grad: bool, dtype: torch.dtype, slack: float
) -> None:
    lr, (lower, upper) = 0.1, bounds or (0.0, float("inf"))
    parameters = blocks(dtype)
    optimizer = tw.optim.LANS(parameters, lr, normalize_grad=normalize_grad, trust_bounds=bounds)
    for step_gradients in gradients():
        before = [parameter.detach().clone().double() for parameter in parameters]
        give(parameters, step_gradients)
        optimizer.step()
        for old, parameter in zip(before, parameters, strict=True):
            phi = float(old.norm().clamp(lower, upper))
            moved = float((parameter.detach().double() - old).norm())
            assert 0.0 < moved <= lr * phi * (1 + slack) + slack * float(old.norm())
