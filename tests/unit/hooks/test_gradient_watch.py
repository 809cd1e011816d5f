"""GradientWatch: who changes gradients between the exchange and the optimizer's step is told."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.hooks.gradient_watch import GradientWatch
from thinwire.recipe import Recipe


def told(recipe: Recipe, change: Callable[[Tensor], object], *, step: int = 0) -> int:
    """How many warnings there are in two steps whose gradients are changed."""
    parameter = nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    watch = GradientWatch(recipe, optimizer, {"weight": parameter})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in (step, step + 1):
            parameter.grad = torch.full((4, 4), 0.3)
            watch.look(number)
            change(parameter.grad)
            optimizer.step()
    return len(caught)


@pytest.mark.parametrize(
    "recipe", [tw.doublesqueeze(), tw.momentum_sgd(), tw.dgc(), tw.doublesqueeze(tw.OneBit())]
)
def test_who_clips_what_was_delayed_is_told_once(recipe: Recipe) -> None:
    assert told(recipe, lambda grad: grad.mul_(0.7)) == 1


@pytest.mark.parametrize("recipe", [tw.dense(), tw.clan(), tw.Recipe(push=tw.Float16())])
def test_gradients_in_full_may_be_clipped(recipe: Recipe) -> None:
    assert told(recipe, lambda grad: grad.mul_(0.7)) == 0


@pytest.mark.parametrize("factor", [1.0, 2.0**-16, 0.0])
def test_to_unscale_or_to_clear_is_not_to_clip(factor: float) -> None:
    assert told(tw.doublesqueeze(), lambda grad: grad.mul_(factor)) == 0


def test_late_steps_are_not_looked_at() -> None:
    assert told(tw.doublesqueeze(), lambda grad: grad.mul_(0.7), step=5000) == 0


def told_of_closures(change: float) -> int:
    """The same of steps with a closure, after which something of ours uses up the gradients."""
    parameter = nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    watch = GradientWatch(tw.momentum_sgd(), optimizer, {"weight": parameter})

    def use_up(*_: object) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.3)

    optimizer.register_step_post_hook(use_up)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(3):

            def closure(number: int = number) -> float:
                parameter.grad = torch.full((4, 4), 0.3)
                watch.look(number)
                parameter.grad.mul_(change)
                return 0.0

            optimizer.step(closure)
    return len(caught)


def test_a_closure_that_clips_is_told_and_no_other() -> None:
    assert told_of_closures(0.7) == 1
    assert told_of_closures(1.0) == 0
