"""Optimizers whose momentum a recipe takes over, in the ways in which scripts use them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.training import Trainer, backward, floats, loss_of, momentum_sgd, weights
from thinwire.optim.takeover import use_momentum

RECIPE = tw.dgc(0.5, momentum=0.9)


def train_by_closure(compressed: bool) -> list[bytes]:
    trainer = Trainer(tw.dgc(1.0) if compressed else None, optimizer=momentum_sgd)
    for step in range(10):

        def closure(step: int = step) -> float:
            trainer.optimizer.zero_grad()
            loss = loss_of(trainer.model, step, dist.get_rank())
            backward(loss)
            return float(loss)

        trainer.optimizer.step(closure)
    return weights(trainer.net)


def test_weight_decay_survives_a_closure() -> None:
    plain = run(train_by_closure, False, ranks=2)[0]
    for a, b in zip(plain, run(train_by_closure, True, ranks=2)[0], strict=True):
        torch.testing.assert_close(floats(a), floats(b), rtol=1e-4, atol=1e-6)


def compress_twice() -> tuple[str, int]:
    trainer = Trainer(RECIPE, optimizer=momentum_sgd)
    error = "none"
    try:
        tw.compress_ddp(trainer.model, RECIPE, optimizer=trainer.optimizer)
    except tw.ConfigError as refused:
        error = str(refused)
    again = DistributedDataParallel(trainer.net)
    tw.compress_ddp(again, RECIPE, optimizer=trainer.optimizer)
    return error, len(trainer.optimizer._optimizer_step_pre_hooks)


def test_a_model_is_compressed_once_and_an_optimizer_may_be_given_again() -> None:
    for error, hooks in run(compress_twice, ranks=2):
        assert "works once" in error
        assert hooks == 2  # of the momentum that was taken over, and of GradientWatch


def sgd(*groups: dict[str, float], **settings: object) -> torch.optim.SGD:
    params = [{"params": [nn.Parameter(torch.ones(3))], **group} for group in groups or ({},)]
    return torch.optim.SGD(params, lr=0.1, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (sgd({"momentum": 0.9}, {"momentum": 0.0}), "group 1 of the optimizer has momentum 0"),
        (sgd(momentum=0.9, fused=True), "fused"),
        (sgd(momentum=0.5), "give the recipe momentum=0.5"),
        (sgd(), "another training than yours: give the recipe momentum=0.0"),
        (
            torch.optim.AdamW([nn.Parameter(torch.ones(3))]),
            "AdamW cannot give up: leave",
        ),
        (tw.optim.SGD([nn.Parameter(torch.ones(3))], 0.1, momentum=0.3, weight_decay=0.1), "0.3"),
    ],
)
def test_momentum_that_cannot_be_taken_over_is_refused(
    optimizer: torch.optim.Optimizer, words: str
) -> None:
    with pytest.raises(tw.ConfigError, match=words):
        use_momentum(RECIPE, optimizer, {})


@pytest.mark.parametrize(
    "recipe", [tw.dgc(0.1, momentum=0.0), tw.Recipe(push_feedback=tw.Momentum(0.0))]
)
def test_a_momentum_of_zero_is_none_and_needs_no_optimizer(recipe: tw.Recipe) -> None:
    use_momentum(recipe, None, {})
    optimizer = sgd(momentum=0.9)
    use_momentum(recipe, optimizer, {})
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_parameters_of_others_are_refused() -> None:
    with pytest.raises(tw.ConfigError, match="not the model's"):
        use_momentum(RECIPE, sgd(momentum=0.9), {"other": torch.ones(3)}, alone=True)


def test_the_optimizers_own_momentum_is_not_dropped_silently() -> None:
    optimizer = sgd(momentum=0.9)
    parameter = optimizer.param_groups[0]["params"][0]
    parameter.grad = torch.ones(3)
    optimizer.step()
    with pytest.warns(UserWarning, match="dropped"):
        use_momentum(RECIPE, optimizer, {})
    assert not optimizer.state[parameter]


def test_a_group_that_comes_later_is_refused_when_it_steps() -> None:
    optimizer = sgd(momentum=0.9)
    use_momentum(RECIPE, optimizer, {})
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "momentum": 0.0})
    with pytest.raises(tw.ConfigError, match="group 1 was added"):
        optimizer.step()
