"""Stored recipes mean for ever what they meant: their defaults are a part of the format."""

from __future__ import annotations

import pytest

import thinwire as tw
from thinwire.codec.policy import by_row
from thinwire.codec.schedule import WARMUP_RATIOS
from thinwire.feedback.momentum import SGDMomentum
from thinwire.recipe_text import read_stored_recipe, stored_recipe

GOLDEN = {
    "recipe/1 Recipe()": tw.Recipe(
        push=tw.Float32(),
        push_feedback=tw.NoFeedback(),
        pull=tw.Float32(),
        pull_feedback=tw.NoFeedback(),
    ),
    "recipe/1 Recipe(push=OneBit(), push_feedback=Residual(), pull=TopK(0.01))": tw.Recipe(
        push=tw.OneBit(scale="l1", block=None),
        push_feedback=tw.Residual(rescale=False, decay=1.0),
        pull=tw.TopK(0.01, values="float32", select="sampled"),
    ),
    "recipe/1 Recipe(push=vectors_as(Float32(), otherwise=unless_dense_is_cheaper(warmup("
    "TopK(0.001), steps=8))), push_feedback=chain(Clip(1.0), Momentum(), Residual()))": tw.Recipe(
        push=tw.vectors_as(
            tw.Float32(),
            otherwise=tw.unless_dense_is_cheaper(
                tw.warmup(tw.TopK(0.001), steps=8, ratios=(0.25, 0.0625, 0.015625, 0.00390625)),
                exchange="two-way",
            ),
        ),
        push_feedback=tw.chain(
            tw.Clip(1.0, scope="model"), tw.Momentum(0.9, nesterov=False, mask=True), tw.Residual()
        ),
    ),
    "recipe/1 Recipe(push=by_row(OneBit(block=8192, stretch=1.5), short=256), "
    "push_feedback=chain(SGDMomentum(), Residual()), pull=by_row(OneBit()))": tw.Recipe(
        push=by_row(tw.OneBit(scale="l1", block=8192, stretch=1.5), rows=None, short=256),
        push_feedback=tw.chain(SGDMomentum(), tw.Residual()),
        pull=by_row(tw.OneBit(scale="l1", block=None, stretch=1.0), rows=None, short=1024),
    ),
    "recipe/1 Recipe(push=TopK(0.01), push_feedback=Residual(decay=0.95))": tw.Recipe(
        push=tw.TopK(0.01), push_feedback=tw.Residual(rescale=False, decay=0.95)
    ),
    "recipe/1 Recipe(push=ChunkTopK(), pull=ChunkTopK(ratio=0.125, values='4bit'))": tw.Recipe(
        push=tw.ChunkTopK(1 / 64, values="2bit"), pull=tw.ChunkTopK(0.125, values="4bit")
    ),
    "recipe/1 Recipe(push=Dither(4), pull=RandomK(0.1))": tw.Recipe(
        push=tw.Dither(4, levels="linear", norm="max"), pull=tw.RandomK(0.1)
    ),
    "recipe/1 Recipe(push=by_name({'fc*': BFloat16()}, otherwise=Float16()), "
    "pull=small_as(Float32(), below=10, otherwise=Nonzero()))": tw.Recipe(
        push=tw.by_name({"fc*": tw.BFloat16()}, otherwise=tw.Float16()),
        pull=tw.small_as(tw.Float32(), below=10, otherwise=tw.Nonzero()),
    ),
}


@pytest.mark.parametrize("text", GOLDEN)
def test_a_stored_recipe_is_read_and_written_as_ever(text: str) -> None:
    assert read_stored_recipe(text) == GOLDEN[text]
    assert stored_recipe(GOLDEN[text]) == text


def test_the_warm_up_of_the_paper_is_the_default() -> None:
    assert WARMUP_RATIOS == (0.25, 0.0625, 0.015625, 0.00390625)
