"""recipe.py: what the named recipes are made of."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

import thinwire as tw
from thinwire.codec.base import Codec
from thinwire.codec.policy import as_policy

NET = nn.Linear(2, 2)
SGD = tw.optim.SGD(NET.parameters(), lr=0.1)
MATRIX, VECTOR = tw.Key("w", (1000, 100)), tw.Key("b", (1000,))


def pushed(recipe: tw.Recipe, key: tw.Key, step: int = 0) -> Codec:
    return as_policy(recipe.push).choose(key, step=step, workers=4)


def pulled(recipe: tw.Recipe, key: tw.Key) -> Codec:
    return as_policy(recipe.pull).choose(key, step=0, workers=4)


def test_dense_is_float32_both_ways_and_remembers_nothing() -> None:
    recipe = tw.dense()
    assert recipe == tw.Recipe()
    assert pushed(recipe, MATRIX) == pulled(recipe, MATRIX) == tw.Float32()
    assert recipe.push_feedback == recipe.pull_feedback == tw.NoFeedback()


def test_dgc_is_the_papers() -> None:
    recipe = tw.dgc(0.001, momentum=0.8, nesterov=True, mask=True, clip_norm=2.0, warmup_steps=0)
    assert pushed(recipe, MATRIX) == tw.TopK(0.001)
    assert pushed(recipe, VECTOR) == tw.Float32()
    assert recipe.push_feedback == tw.chain(
        tw.Clip(2.0), tw.Momentum(0.8, nesterov=True, mask=True), tw.Residual()
    )
    assert recipe.pull_feedback == tw.NoFeedback()


def test_dgc_without_clipping_has_none() -> None:
    assert tw.dgc().push_feedback == tw.chain(tw.Momentum(0.9, mask=False), tw.Residual())


def test_dgc_warms_up_and_is_dense_while_that_is_cheaper() -> None:
    recipe = tw.dgc(0.001)
    ratios = [pushed(recipe, MATRIX, step) for step in (0, 250, 500, 750, 1000)]
    expected = [tw.TopK(r) for r in (0.25, 0.0625, 0.015625, 0.00390625, 0.001)]
    assert ratios == expected
    assert pushed(tw.dgc(1.0), MATRIX) == tw.Float32()


def test_dgc_settings_reach_the_codec() -> None:
    recipe = tw.dgc(0.01, values="int8", vectors=tw.OneBit(), pull_ratio=0.05, warmup_steps=0)
    assert pushed(recipe, MATRIX) == tw.TopK(0.01, values="int8")
    assert pushed(recipe, VECTOR) == tw.OneBit()
    assert pulled(recipe, MATRIX) == tw.TopK(0.05, values="int8")
    assert recipe.pull_feedback == tw.Residual()


def test_doublesqueeze_is_the_same_both_ways() -> None:
    recipe = tw.doublesqueeze(tw.OneBit())
    assert pushed(recipe, MATRIX) == pulled(recipe, VECTOR) == tw.OneBit()
    assert recipe.push_feedback == recipe.pull_feedback == tw.Residual()


@pytest.mark.parametrize(
    ("codec", "biased"),
    [(tw.OneBit(), True), (tw.TopK(0.1), True), (tw.RandomK(0.1), True), (tw.Dither(4), False)],
)
def test_clan_has_feedback_for_biased_codecs_only(codec: Codec, biased: bool) -> None:
    recipe = tw.clan(codec)
    expected = tw.Residual() if biased else tw.NoFeedback()
    assert recipe.push_feedback == recipe.pull_feedback == expected


def test_sparseloco_forgets_on_the_way_there_only() -> None:
    recipe = tw.sparseloco(1 / 32, decay=0.9, values="4bit")
    assert pushed(recipe, MATRIX) == pulled(recipe, MATRIX) == tw.ChunkTopK(1 / 32, "4bit")
    assert pushed(recipe, VECTOR) == pulled(recipe, VECTOR) == tw.BFloat16()
    assert recipe.push_feedback == tw.Residual(decay=0.9)
    assert recipe.pull_feedback == tw.Residual()
    assert recipe.outer == tw.Outer()


def test_sparseloco_answers_in_full_if_only_the_way_there_is_compressed() -> None:
    recipe = tw.sparseloco(two_way=False)
    assert pushed(recipe, MATRIX) == tw.ChunkTopK()
    assert pulled(recipe, MATRIX) == tw.Nonzero()
    assert pulled(recipe, VECTOR) == tw.Float32()
    assert recipe.pull_feedback == tw.NoFeedback()


def test_clan_sends_vectors_in_16_bits_where_its_codec_is_biased() -> None:
    assert pushed(tw.clan(tw.OneBit()), MATRIX) == pulled(tw.clan(tw.OneBit()), MATRIX)
    assert pushed(tw.clan(tw.OneBit()), MATRIX) == tw.OneBit()
    assert pushed(tw.clan(tw.OneBit()), VECTOR) == pulled(tw.clan(tw.OneBit()), VECTOR)
    assert pushed(tw.clan(tw.OneBit()), VECTOR) == tw.Float16()
    plain = tw.Recipe(tw.Dither(4), tw.NoFeedback(), tw.Dither(4), tw.NoFeedback())
    assert tw.clan(tw.Dither(4)) == plain
    assert pushed(tw.clan(tw.OneBit(), vectors=tw.OneBit()), VECTOR) == tw.OneBit()
    assert tw.clan(tw.Dither(4), vectors=tw.Float16()).push_feedback == tw.Residual()


def test_recipes_are_values() -> None:
    assert tw.dgc(0.01, clip_norm=1.0) == tw.dgc(0.01, clip_norm=1.0)
    assert hash(tw.dgc(0.01)) == hash(tw.dgc(0.01)) != hash(tw.dgc(0.02))
    assert tw.Recipe(push=tw.OneBit()) == tw.Recipe(push=as_policy(tw.OneBit()))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tw.doublesqueeze(tw.OneBit), "expected a codec such as OneBit"),  # type: ignore[arg-type]
        (lambda: tw.doublesqueeze("onebit"), "got 'onebit'"),  # type: ignore[arg-type]
        (lambda: tw.clan(3), "got 3"),  # type: ignore[arg-type]
        (lambda: tw.dgc(vectors=5), "vectors_as: expected a codec"),  # type: ignore[arg-type]
        (lambda: tw.Recipe(push=tw.warmup), "expected a codec"),  # type: ignore[arg-type]
        (lambda: tw.Recipe(push_feedback=3), "push_feedback: expected a feedback"),  # type: ignore[arg-type]
        (lambda: tw.Recipe(pull_feedback=tw.Residual), "Residual()"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_recipe_is_refused_when_it_is_made(
    make: Callable[[], object], words: str
) -> None:
    with pytest.raises(tw.ConfigError, match=re.escape(words)):
        make()


@pytest.mark.parametrize(
    "use",
    [
        lambda recipe: tw.Server("tcp://127.0.0.1:0", recipe, workers=1),
        lambda recipe: tw.Client(["tcp://127.0.0.1:1"], recipe, rank=0, workers=1),
        lambda recipe: tw.VirtualCluster(NET, SGD, recipe, workers=1),
    ],
    ids=["Server", "Client", "VirtualCluster"],
)
def test_the_name_of_a_recipe_is_no_recipe(use: Callable[[Any], object]) -> None:
    with pytest.raises(
        tw.ConfigError, match=r"expected a recipe such as tw.dgc\(0.001\), got 'dgc'"
    ):
        use("dgc")
