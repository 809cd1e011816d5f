"""codec/schedule.py: the warm-up of Deep Gradient Compression."""

from __future__ import annotations

import pytest

import thinwire as tw
from thinwire.codec.randomk import RandomK
from thinwire.codec.schedule import WARMUP_RATIOS, Warmup

KEY = tw.Key("w", (1000, 1000))


def ratios(policy: Warmup, steps: range) -> list[float]:
    chosen = [policy.choose(KEY, step=step, workers=4) for step in steps]
    assert all(isinstance(codec, tw.TopK | RandomK) for codec in chosen)
    return [codec.ratio for codec in chosen if isinstance(codec, tw.TopK | RandomK)]


def test_the_ratios_are_the_papers() -> None:
    """Sparsity 75 %, 93.75 %, 98.4375 %, 99.6 %, then 99.9 %."""
    assert WARMUP_RATIOS == (0.25, 0.0625, 0.015625, 0.00390625)
    assert tuple(4.0 ** -(epoch + 1) for epoch in range(4)) == WARMUP_RATIOS
    policy = tw.warmup(tw.TopK(0.001), steps=4)
    assert ratios(policy, range(6)) == [0.25, 0.0625, 0.015625, 0.00390625, 0.001, 0.001]


@pytest.mark.parametrize("steps", [4, 100, 1001])
def test_each_ratio_lasts_an_equal_share(steps: int) -> None:
    found = ratios(tw.warmup(tw.TopK(0.001), steps=steps), range(steps))
    shares = [found.count(ratio) for ratio in WARMUP_RATIOS]
    assert sum(shares) == steps
    assert max(shares) - min(shares) <= 1
    assert found == sorted(found, reverse=True)


def test_it_never_keeps_less_than_the_codec_does() -> None:
    found = ratios(tw.warmup(tw.TopK(0.05), steps=4), range(5))
    assert found == [0.25, 0.0625, 0.05, 0.05, 0.05]


def test_only_the_ratio_changes() -> None:
    codec = tw.TopK(0.001, values="int8", select="exact")
    policy = tw.warmup(codec, steps=4)
    assert policy.choose(KEY, step=0, workers=1) == tw.TopK(0.25, "int8", "exact")
    assert policy.choose(KEY, step=4, workers=1) is codec


def test_ratios_of_ones_own() -> None:
    found = ratios(tw.warmup(tw.RandomK(0.01), steps=6, ratios=(0.5, 0.1)), range(8))
    assert found == [0.5] * 3 + [0.1] * 3 + [0.01] * 2


def test_no_warm_up_at_all() -> None:
    assert ratios(tw.warmup(tw.TopK(0.001), steps=0), range(2)) == [0.001, 0.001]
