"""Mixed precision: what is remembered is not scaled, and overflows leave no trace."""

# ruff: noqa: N802 - a test begins with the number of its pitfall, as the pitfall is written

from __future__ import annotations

import math
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

import thinwire as tw
from tests.distributed.handles import all_finite, states
from tests.distributed.launch import run
from tests.distributed.training import (
    RECIPES,
    Trainer,
    backward,
    floats,
    loss_of,
    network,
    weights,
    without_onednn,
)

TRAINED = ["1 bit", "dgc", "top-k"]


class ScaledTrainer(Trainer):
    """Trains with a GradScaler, as its documentation says."""

    def __init__(self, name: str, scale: float, **options: Any) -> None:
        self.scaler = GradScaler("cpu", init_scale=scale, growth_interval=1000)
        super().__init__(RECIPES[name], scaler=self.scaler, **options)

    def step(self, step: int, loss: Tensor | None = None) -> None:
        loss = loss_of(self.model, step, dist.get_rank()) if loss is None else loss
        backward(self.scaler.scale(loss))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def train_scaled(name: str, change_at: int | None) -> list[bytes]:
    trainer = ScaledTrainer(name, 2.0**16)
    for step in range(10):
        if step == change_at:
            trainer.scaler.update(2.0**8)
        trainer.step(step)
    return weights(trainer.net)


def train_unscaled(name: str) -> list[bytes]:
    return Trainer(RECIPES[name]).train(range(10))


@pytest.mark.parametrize("name", TRAINED)
def test_P9_the_scale_may_change_and_changes_nothing(name: str) -> None:
    """Scales are powers of two, so the trajectory is the same bit for bit."""
    plain = run(train_unscaled, name, ranks=2)
    assert run(train_scaled, name, None, ranks=2) == plain
    assert run(train_scaled, name, 5, ranks=2) == plain


def overflow(name: str, value: float, exchange: str) -> dict[str, Any]:
    """One gradient of rank 1, in the last bucket to come, overflows in step 3."""
    trainer = ScaledTrainer(name, 2.0**10, exchange=exchange)
    trainer.train(range(3))
    before, weights_before = states(trainer), weights(trainer.net)
    scale_before = trainer.scaler.get_scale()
    loss = loss_of(trainer.model, 3, dist.get_rank())
    if dist.get_rank() == 1:
        first = next(trainer.net.parameters())
        loss = loss + (first[0, 0] * value)
    trainer.step(3, loss)
    unchanged = states(trainer) == before and weights(trainer.net) == weights_before
    assert trainer.compression is not None
    return {
        "unchanged": unchanged,
        "scale": trainer.scaler.get_scale() / scale_before,
        "overflowed": trainer.compression.overflowed_steps,
        "after": trainer.train(range(4, 6)),
    }


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
@pytest.mark.parametrize("value", [math.inf, math.nan, 1e33], ids=str)
@pytest.mark.parametrize("name", TRAINED)
def test_P10_an_overflow_on_one_rank_makes_all_skip_and_leaves_no_trace(
    name: str, value: float, exchange: str
) -> None:
    found = run(overflow, name, value, exchange, ranks=3)
    for one in found:
        assert one["unchanged"]
        assert one["scale"] == 0.5
        assert one["overflowed"] == 1
        assert one["after"] == found[0]["after"]
        assert all(floats(w).isfinite().all() for w in one["after"])


def overflow_in_half() -> tuple[bool, bool, int]:
    """The mean fits float32, but times the scale not the float16 of the gradients."""
    net = network().half()
    with without_onednn():
        scaler = GradScaler("cpu", init_scale=2.0**4, growth_interval=1000)
        trainer = Trainer(RECIPES["1 bit"], net=net, scaler=scaler)
        assert trainer.compression is not None
        last = list(net.parameters())[-1]
        backward(scaler.scale(loss_of(trainer.model, 0, dist.get_rank()) + 3000.0 * last.sum()))
        scaler.update(2.0**6)  # what is owed was small enough for the old scale, not for this one
        before = states(trainer)
        backward(scaler.scale(loss_of(trainer.model, 1, dist.get_rank()) + 3000.0 * last.sum()))
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        finite = all(bool(g.isfinite().all()) for g in grads)
        return finite, states(trainer) == before, trainer.compression.overflowed_steps


def test_P10_a_mean_that_float16_cannot_hold_is_an_overflow() -> None:
    assert run(overflow_in_half, ranks=2) == [(False, True, 1)] * 2


def overflow_without_scaler() -> tuple[bool, bool]:
    trainer = Trainer(tw.doublesqueeze(tw.OneBit()))
    trainer.train(range(2))
    before = states(trainer)
    first = next(trainer.net.parameters())
    backward(loss_of(trainer.model, 2, dist.get_rank()) + first[0, 0] * math.inf)
    seen = not bool(first.grad is not None and first.grad.isfinite().all())
    after = states(trainer)
    untouched = after["push/0.weight/residual"] == before["push/0.weight/residual"]
    return seen, untouched and all_finite(trainer)


def test_P10_without_a_scaler_the_script_sees_the_overflow_and_no_state_is_spoilt() -> None:
    """What is owed for the tensor that overflowed is as before; other tensors made the step."""
    assert run(overflow_without_scaler, ranks=2) == [(True, True)] * 2
