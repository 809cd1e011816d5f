"""A setting that cannot work is refused when it is made, with owner, value and range."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import thinwire as tw
from thinwire.wire.limits import Limits

PARAMETER = torch.zeros(1)

BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: tw.OneBit(stretch=2.0), "OneBit: stretch must be between 0.0 and 2.0, got 2.0"),
    (lambda: tw.OneBit(scale="l3"), "OneBit: scale must be one of l1, l2, got 'l3'"),
    (lambda: tw.OneBit(block=0), "OneBit: block must be a positive multiple of 64, got 0"),
    (lambda: tw.OneBit(block=-64), "OneBit: block .* got -64"),
    (lambda: tw.OneBit(block=100), "OneBit: block .* got 100"),
    (lambda: tw.OneBit(block=2**31), "OneBit: block .* got 2147483648"),
    (lambda: tw.OneBit(block=64.0), r"OneBit: block .* got 64\.0"),  # type: ignore[arg-type]  # the point
    (lambda: tw.TopK(0.0), r"TopK: ratio is the fraction kept, in \(0, 1\], got 0\.0"),
    (lambda: tw.TopK(-0.1), r"TopK: ratio .* got -0\.1"),
    (lambda: tw.TopK(1.5), r"TopK: ratio .* got 1\.5"),
    (lambda: tw.TopK(math.nan), "TopK: ratio .* got nan"),
    (lambda: tw.TopK(0.1, values="int4"), "TopK: values .* float32, float16, int8, got 'int4'"),
    (lambda: tw.TopK(0.1, select="all"), "TopK: select must be one of sampled, exact, got 'all'"),
    (lambda: tw.RandomK(0.0), r"RandomK: ratio .* got 0\.0"),
    (lambda: tw.RandomK(2.0), r"RandomK: ratio .* got 2\.0"),
    (lambda: tw.Dither(0), "Dither: bits must be 1 to 8 with norm 'max', got 0"),
    (lambda: tw.Dither(9), "Dither: bits .* got 9"),
    (lambda: tw.Dither(2.5), r"Dither: bits .* got 2\.5"),  # type: ignore[arg-type]  # the point
    (lambda: tw.Dither(1, norm="l2"), "Dither: bits must be 2 to 8 with norm 'l2', got 1"),
    (
        lambda: tw.Dither(4, levels="log"),
        "Dither: levels must be one of linear, natural, got 'log'",
    ),
    (lambda: tw.Dither(4, norm="l1"), "Dither: norm must be one of max, l2, got 'l1'"),
    (lambda: tw.Clip(0.0), r"Clip: norm must be positive and finite, got 0\.0"),
    (lambda: tw.Clip(-1.0), r"Clip: norm .* got -1\.0"),
    (lambda: tw.Clip(math.inf), "Clip: norm .* got inf"),
    (lambda: tw.Clip(math.nan), "Clip: norm .* got nan"),
    (lambda: tw.Clip(1.0, scope="layer"), "Clip: scope must be one of model, tensor, got 'layer'"),
    (lambda: tw.Momentum(1.0), r"Momentum: momentum must be in \[0, 1\), got 1\.0"),
    (lambda: tw.Momentum(-0.1), r"Momentum: momentum .* got -0\.1"),
    (lambda: tw.Momentum(math.nan), "Momentum: momentum .* got nan"),
    (lambda: tw.chain(tw.Residual(), tw.Residual()), "chain: two stages both keep residual"),
    (lambda: tw.small_as(tw.Float32(), below=-1, otherwise=tw.OneBit()), "below .* from 0, got -1"),
    (lambda: tw.small_as(tw.Float32(), below=1.5, otherwise=tw.OneBit()), "below .* got 1.5"),  # type: ignore[arg-type]  # the point
    (lambda: tw.warmup(tw.TopK(0.1), steps=-1), "warmup: steps .* from 0, got -1"),
    (lambda: tw.warmup(tw.TopK(0.1), steps=4, ratios=()), "warmup: ratios must not be empty"),
    (lambda: tw.warmup(tw.TopK(0.1), steps=4, ratios=(2.0,)), r"warmup: ratio .* got 2\.0"),
    (lambda: tw.warmup(tw.OneBit(), steps=4), "warmup: .*OneBit.* has no ratio"),  # type: ignore[arg-type]  # the point
    (
        lambda: tw.unless_dense_is_cheaper(tw.OneBit(), exchange="ring"),
        "unless_dense_is_cheaper: exchange must be one of two-way, allgather, got 'ring'",
    ),
    (lambda: tw.dgc(ratio=0.0), r"TopK: ratio .* got 0\.0"),
    (lambda: tw.dgc(momentum=1.0), r"momentum .* got 1\.0"),
    (lambda: tw.dgc(clip_norm=0.0), r"Clip: norm .* got 0\.0"),
    (lambda: tw.dgc(pull_ratio=0.0), r"TopK: ratio .* got 0\.0"),
    (lambda: tw.dgc(values="int4"), "TopK: values .* got 'int4'"),
    (lambda: tw.Compressor(tw.OneBit(), tw.Residual(), seed=-1), "Compressor: seed .* got -1"),
    (lambda: tw.Compressor(tw.OneBit(), tw.Residual(), rank=-1), "Compressor: rank .* got -1"),
    (lambda: tw.Compressor(tw.OneBit(), tw.Residual(), workers=0), "workers .* from 1, got 0"),
    (lambda: tw.optim.SGD([PARAMETER], lr=-0.5), r"SGD: .*lr.* got -0\.5"),
    (lambda: tw.optim.SGD([PARAMETER], lr=math.nan), "SGD: .*lr.* got nan"),
    (lambda: tw.optim.SGD([PARAMETER], lr=0.1, momentum=1.0), r"SGD: momentum .* got 1\.0"),
    (lambda: tw.optim.SGD([PARAMETER], lr=0.1, weight_decay=-1.0), r"SGD: weight_decay .* -1\.0"),
    (lambda: tw.optim.SGD([PARAMETER], lr=0.1, nesterov=True), "SGD: nesterov needs a momentum"),
    (lambda: Limits(max_numel=-1), "limits: max_numel -1, expected"),
    (lambda: Limits(max_body_nbytes=2**32), "limits: max_body_nbytes 4294967296, expected"),
]


@pytest.mark.parametrize(("make", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_it_is_refused_when_it_is_made(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(tw.ConfigError, match=sentence):
        make()


GOOD: list[Callable[[], object]] = [
    lambda: tw.OneBit(block=64),
    lambda: tw.OneBit(block=2**31 - 64),
    lambda: tw.TopK(1.0),
    lambda: tw.TopK(1e-9),
    lambda: tw.RandomK(1.0),
    lambda: tw.Dither(1),
    lambda: tw.Dither(8, norm="l2"),
    lambda: tw.Momentum(0.0),
    lambda: tw.Clip(1e-30),
    lambda: tw.small_as(tw.Float32(), below=0, otherwise=tw.OneBit()),
    lambda: tw.warmup(tw.TopK(0.1), steps=0),
    lambda: tw.optim.SGD([PARAMETER], lr=0.0),
    lambda: tw.chain(),
]


@pytest.mark.parametrize("make", GOOD)
def test_the_ends_of_the_ranges_are_in_them(make: Callable[[], object]) -> None:
    assert make() is not None


def test_config_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match="TopK"):
        tw.TopK(7.0)
