"""Statistics: what they say was sent is what was sent."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import math
from typing import Any

import pytest

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.training import RECIPES, Trainer, network

NUMEL = sum(p.numel() for p in network().parameters())


def stats_after(name: str, steps: int, options: dict[str, Any]) -> tw.Stats:
    recipe = tw.dense() if name == "dense" else RECIPES[name]
    trainer = Trainer(recipe, **options)
    trainer.train(range(steps))
    assert trainer.compression is not None
    return trainer.compression.stats()


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
@pytest.mark.parametrize("name", ["dense", *RECIPES])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_S4_what_one_sends_another_receives(name: str, exchange: str, ranks: int) -> None:
    found = run(stats_after, name, 4, {"exchange": exchange}, ranks=ranks)
    assert sum(one.sent_nbytes for one in found) == sum(one.received_nbytes for one in found)
    for one in found:
        assert one.steps == 4
        assert one.dense_nbytes == 4 * 4 * NUMEL
        assert one.pushed_nbytes == sum(t.pushed_nbytes for t in one.tensors.values())
        assert set(one.tensors) == {n for n, _ in network().named_parameters()}
        assert (one.sent_nbytes == 0) == (ranks == 1)


@pytest.mark.parametrize(
    ("name", "least", "most"), [("dense", 1, 1), ("1 bit", 20, 32), ("dgc", 10, 60)]
)
def test_ratios(name: str, least: float, most: float) -> None:
    for one in run(stats_after, name, 4, {}, ranks=2):
        assert least <= one.ratio <= most


def test_frames_add_little() -> None:
    """Half of what a rank pushes it sends; half of what it pulls is its own answers."""
    for one in run(stats_after, "dense", 4, {}, ranks=2):
        assert one.sent_nbytes == pytest.approx(one.dense_nbytes, rel=0.05)
        assert one.received_nbytes == pytest.approx(one.dense_nbytes, rel=0.05)


def test_residuals_and_times_are_measured() -> None:
    for one in run(stats_after, "1 bit", 6, {}, ranks=2):
        assert one.residual_ratio is not None
        assert 0.1 < one.residual_ratio < 10
        for tensor in one.tensors.values():
            assert tensor.residual_ratio is not None
            assert math.isfinite(tensor.residual_ratio)
        for seconds in (one.encode_seconds, one.serve_seconds, one.decode_seconds):
            assert seconds > 0
        assert one.exposed_seconds > 0
        assert one.hidden_seconds >= 0
    (one, _) = run(stats_after, "dense", 2, {}, ranks=2)
    assert one.residual_ratio is None
