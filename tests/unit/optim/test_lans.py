"""optim/lans.py: the batched step is the formula, in an ordinary optimizer."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import thinwire as tw
from tests.reference.lans import Lans
from thinwire.optim import lans

SHAPES = ((20, 25), (25,), (1,), (0,), (3, 4, 5))
STEPS = 30


def drawn(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def parameters_of(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.nn.Parameter(x) for x in drawn(0, dtype)]


def give(parameters: list[Tensor], seed: int) -> None:
    for parameter, gradient in zip(parameters, drawn(seed, parameters[0].dtype), strict=True):
        parameter.grad = gradient


def references(parameters: list[Tensor], lr: float, **settings: float) -> list[Lans]:
    return [Lans(p.detach().double().numpy().copy(), lr, **settings) for p in parameters]  # type: ignore[arg-type]  # mixed values


def follow(references: list[Lans], parameters: list[Tensor]) -> None:
    for reference, parameter in zip(references, parameters, strict=True):
        if parameter.grad is not None:
            reference.step(parameter.grad.double().numpy())


def assert_close(parameters: list[Tensor], references: list[Lans], *, tolerance: float) -> None:
    for parameter, reference in zip(parameters, references, strict=True):
        expected = torch.from_numpy(reference.x)
        found = parameter.detach().double()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"normalize_grad": False}, {"normalize_grad": False}),
    ({"betas": (0.0, 0.9)}, {"beta1": 0.0, "beta2": 0.9}),
    ({"betas": (0.5, 0.0)}, {"beta1": 0.5, "beta2": 0.0}),
    ({"eps": 0.1, "weight_decay": 0.3}, {"eps": 0.1, "weight_decay": 0.3}),
    ({"weight_decay": 0.0}, {"weight_decay": 0.0}),
    ({"trust_bounds": (0.5, 2.0)}, {"lower": 0.5, "upper": 2.0}),
    ({"trust_bounds": (0.0, 1e-3)}, {"upper": 1e-3}),
]


@pytest.mark.parametrize(("ours", "theirs"), SETTINGS, ids=[str(ours) for ours, _ in SETTINGS])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-4)], ids=str
)
def test_it_is_the_formula(
    ours: dict[str, Any], theirs: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    parameters = parameters_of(dtype)
    optimizer = tw.optim.LANS(parameters, 0.01, **ours)
    expected = references(parameters, 0.01, **theirs)
    for seed in range(1, STEPS + 1):
        give(parameters, seed)
        optimizer.step()
        follow(expected, parameters)
    assert_close(parameters, expected, tolerance=tolerance)


def test_batches_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for numel in (1, 100, 1 << 20):
        monkeypatch.setattr(lans, "_CPU_BATCH_NUMEL", numel)
        parameters = parameters_of()
        optimizer = tw.optim.LANS(parameters, 0.01)
        for seed in range(1, 6):
            give(parameters, seed)
            optimizer.step()
        found.append(parameters)
    for others in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], others, strict=True))


def large(seed: int) -> list[Tensor]:
    """Tensors that torch spreads over threads, one of them with the channels innermost."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(200, 170, generator=generator)
    kernel = torch.randn(64, 61, 3, 3, generator=generator)
    return [matrix, kernel.to(memory_format=torch.channels_last)]


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's number of threads, until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_large_tensors_follow_the_reference_with_any_number_of_threads(
    threads: Callable[[int], None],
) -> None:
    found = []
    for count in (1, 2):
        threads(count)
        parameters: list[Tensor] = [torch.nn.Parameter(x) for x in large(0)]
        optimizer, expected = tw.optim.LANS(parameters, 0.01), references(parameters, 0.01)
        for seed in range(1, 4):
            for parameter, gradient in zip(parameters, large(seed), strict=True):
                parameter.grad = gradient
            optimizer.step()
            follow(expected, parameters)
        assert_close(parameters, expected, tolerance=1e-5)
        found.append(parameters)
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


def test_the_gradient_is_left_alone() -> None:
    for normalize_grad in (True, False):
        parameters = parameters_of()
        give(parameters, 1)
        tw.optim.LANS(parameters, 0.01, normalize_grad=normalize_grad).step()
        for parameter, gradient in zip(parameters, drawn(1), strict=True):
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, gradient)


def test_a_zero_block_moves_by_the_directions_themselves() -> None:
    """||x|| = 0, so the ratio is 1; at the first step both directions are g / (|g| + eps)."""
    parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    parameter.grad = torch.tensor([3.0, -3.0, 3.0, 3.0], dtype=torch.float64)
    bounds = (0.5, 2.0)  # which do not bind here
    tw.optim.LANS([parameter], 0.1, trust_bounds=bounds).step()
    size = 3.0 / (6.0 + 1e-6)
    step = 0.1 * size / (size + 1e-6)
    assert parameter.tolist() == pytest.approx([-step, step, -step, -step], rel=1e-9)


@pytest.mark.parametrize("normalize_grad", [True, False])
def test_a_zero_block_follows_the_reference(normalize_grad: bool) -> None:
    parameter = torch.nn.Parameter(torch.zeros(20, 25))
    expected = references([parameter], 0.01, normalize_grad=normalize_grad)
    optimizer = tw.optim.LANS([parameter], 0.01, normalize_grad=normalize_grad)
    for seed in range(1, 11):
        parameter.grad = drawn(seed)[0]
        optimizer.step()
        follow(expected, [parameter])
    assert_close([parameter], expected, tolerance=1e-4)


@pytest.mark.parametrize("normalize_grad", [True, False])
def test_a_zero_gradient_leaves_only_decay(normalize_grad: bool) -> None:
    """Both directions are weight_decay * x, and normalised they are x itself."""
    parameter = torch.nn.Parameter(torch.tensor([3.0, -4.0]))
    parameter.grad = torch.zeros(2)
    optimizer = tw.optim.LANS([parameter], 0.1, normalize_grad=normalize_grad)
    optimizer.step()
    assert parameter.tolist() == pytest.approx([2.7, -3.6])


def test_with_neither_gradient_nor_decay_nothing_moves() -> None:
    for value in (0.0, 2.0):
        parameter = torch.nn.Parameter(torch.full((3,), value))
        parameter.grad = torch.zeros(3)
        tw.optim.LANS([parameter], 0.1, weight_decay=0.0).step()
        assert parameter.tolist() == [value] * 3


@pytest.mark.parametrize(("bounds", "phi"), [((0.0, 2.0), 2.0), ((8.0, 9.0), 8.0), (None, 5.0)])
def test_trust_bounds_clamp_the_length_of_the_step(
    bounds: tuple[float, float] | None, phi: float
) -> None:
    parameter = torch.nn.Parameter(torch.tensor([3.0, -4.0], dtype=torch.float64))
    parameter.grad = torch.tensor([1.0, 2.0], dtype=torch.float64)
    before = parameter.detach().clone()
    tw.optim.LANS([parameter], 0.1, trust_bounds=bounds).step()
    assert float((parameter.detach() - before).norm()) == pytest.approx(0.1 * phi)


def test_without_a_gradient_nothing_moves_and_no_step_is_counted() -> None:
    one, two = parameters_of()[:2]
    optimizer = tw.optim.LANS([one, two], 0.01)
    expected = references([one, two], 0.01)
    for seed in range(1, 11):
        one.grad, two.grad = drawn(seed)[:2]
        if seed % 2:
            two.grad = None
        optimizer.step()
        follow(expected, [one, two])
    assert [float(optimizer.state[p]["step"]) for p in (one, two)] == [10.0, 5.0]
    assert_close([one, two], expected, tolerance=1e-4)


def test_groups_have_settings_of_their_own() -> None:
    weight, bias = parameters_of()[:2]
    groups: list[dict[str, Any]] = [{"params": [weight]}]
    groups += [{"params": [bias], "weight_decay": 0.0, "lr": 0.02}]
    optimizer = tw.optim.LANS(groups, 0.01, weight_decay=0.3)
    expected = references([weight], 0.01, weight_decay=0.3)
    expected += references([bias], 0.02, weight_decay=0.0)
    for seed in range(1, 11):
        weight.grad, bias.grad = drawn(seed)[:2]
        optimizer.step()
        follow(expected, [weight, bias])
    assert_close([weight, bias], expected, tolerance=1e-4)


def test_dtypes_may_be_mixed_in_a_group() -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.bfloat16)
    parameters: list[Tensor] = [torch.nn.Parameter(torch.full((8,), 2.0).to(t)) for t in dtypes]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    tw.optim.LANS(parameters, 0.5, weight_decay=0.0).step()
    for parameter in parameters:
        assert parameter.tolist() == pytest.approx([1.0] * 8, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_a_float32_step_rounded_once(dtype: torch.dtype) -> None:
    half = parameters_of(dtype)
    optimizer = tw.optim.LANS(half, 0.01)
    for seed in range(1, 6):
        give(half, seed)
        wide = [torch.nn.Parameter(p.detach().float()) for p in half]
        twin = tw.optim.LANS(wide, 0.01)
        for p, q in zip(half, wide, strict=True):
            twin.state[q] = {key: value.clone() for key, value in optimizer.state[p].items()}
            q.grad = p.grad.float()  # type: ignore[union-attr]  # it was given
        optimizer.step()
        twin.step()
        for p, q in zip(half, wide, strict=True):
            assert torch.equal(p, q.to(dtype))
            assert optimizer.state[p]["exp_avg"].dtype == torch.float32
            assert torch.equal(optimizer.state[p]["exp_avg_sq"], twin.state[q]["exp_avg_sq"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_saving_and_loading_is_invisible(dtype: torch.dtype) -> None:
    straight, resumed = parameters_of(dtype), parameters_of(dtype)
    one, two = tw.optim.LANS(straight, 0.01), tw.optim.LANS(resumed, 0.01)
    for seed in range(1, 11):
        if seed == 5:
            file = io.BytesIO()
            torch.save(two.state_dict(), file)
            file.seek(0)
            two = tw.optim.LANS(resumed, 1.0, betas=(0.0, 0.0), trust_bounds=(0.0, 1.0))
            two.load_state_dict(torch.load(file, weights_only=True))
        for parameters, optimizer in ((straight, one), (resumed, two)):
            give(parameters, seed)
            optimizer.step()
    for p, q in zip(straight, resumed, strict=True):
        assert torch.equal(p, q)
        for key, value in one.state[p].items():
            assert torch.equal(value, two.state[q][key])
            assert value.dtype == two.state[q][key].dtype


def test_a_parameter_that_had_no_step_yet_can_be_loaded() -> None:
    one, two = parameters_of(torch.bfloat16)[:2]
    one.grad = torch.ones_like(one)
    optimizer = tw.optim.LANS([one, two], 0.01)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert set(optimizer.state) == {one}


def test_state_is_plain_tensors() -> None:
    parameters = parameters_of()
    give(parameters, 1)
    optimizer = tw.optim.LANS(parameters, 0.01)
    optimizer.step()
    for parameter in parameters:
        state = optimizer.state[parameter]
        assert set(state) == {"exp_avg", "exp_avg_sq", "step"}
        assert all(type(value) is Tensor for value in state.values())
        assert float(state["step"]) == 1.0


def test_the_closure_is_called_with_gradients_on() -> None:
    parameter = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = tw.optim.LANS([parameter], 0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (parameter**2).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        return float(loss.detach())

    assert optimizer.step(closure) == 9.0
    assert parameter.item() == pytest.approx(3.0 - 0.1 * 3.0)


def test_it_works_with_a_learning_rate_schedule() -> None:
    parameter = torch.nn.Parameter(torch.tensor([2.0]))
    parameter.grad = torch.tensor([1.0])
    optimizer = tw.optim.LANS([parameter], 0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    optimizer.step()
    schedule.step()
    optimizer.step()
    assert parameter.item() == pytest.approx(2.0 * 0.5 * 0.95)


def make(**settings: Any) -> tw.optim.LANS:
    return tw.optim.LANS([torch.zeros(1)], **{"lr": 0.1, **settings})


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: make(lr=-0.5), r"LANS: lr must be finite and at least 0\.0, got -0\.5"),
    (lambda: make(lr=math.nan), "LANS: lr .* got nan"),
    (lambda: make(weight_decay=-1.0), r"LANS: weight_decay .* got -1\.0"),
    (lambda: make(betas=(1.0, 0.9)), r"LANS: betas\[0\] must be in \[0, 1\), got 1\.0"),
    (lambda: make(betas=(0.9, -0.1)), r"LANS: betas\[1\] must be in \[0, 1\), got -0\.1"),
    (lambda: make(eps=0.0), r"LANS: eps must be positive and finite, got 0\.0"),
    (lambda: make(trust_bounds=(-1.0, 1.0)), r"LANS: trust_bounds\[0\] .* got -1\.0"),
    (lambda: make(trust_bounds=(0.0, 0.0)), r"LANS: trust_bounds\[1\] .* got 0\.0"),
    (lambda: make(trust_bounds=(2.0, 1.0)), r"LANS: trust_bounds\[1\] .* at least 2\.0, got 1\.0"),
    (lambda: make(trust_bounds=(0.0, math.inf)), r"LANS: trust_bounds\[1\] .* got inf"),
    (
        lambda: tw.optim.LANS([{"params": [torch.zeros(1)], "eps": -1.0}], 0.1),
        r"LANS: eps .* got -1\.0",
    ),
]


@pytest.mark.parametrize(("refused", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_it_is_refused_when_it_is_made(refused: Callable[[], object], sentence: str) -> None:
    with pytest.raises(tw.ConfigError, match=sentence):
        refused()
