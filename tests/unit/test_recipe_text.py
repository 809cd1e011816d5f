"""recipe_text.py: recipes as typed, and as they are stored."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from hypothesis import given, strategies as st

import thinwire as tw
from thinwire.codec.base import Payload
from thinwire.recipe_names import typed_recipe, typed_stored_recipe
from thinwire.recipe_text import (
    EXAMPLES,
    PREFIX,
    read_recipe,
    read_stored_recipe,
    same_recipe,
    stored_recipe,
)

NAMED = {
    "dense()": tw.dense(),
    "dgc(0.001)": tw.dgc(),
    "dgc(0.01, momentum=0.0)": tw.dgc(0.01, momentum=0.0),
    "dgc(0.01, momentum=0.8, nesterov=True, clip_norm=2.0, warmup_steps=40, pull_ratio=0.1, "
    "values='int8')": tw.dgc(
        0.01,
        momentum=0.8,
        nesterov=True,
        clip_norm=2.0,
        warmup_steps=40,
        pull_ratio=0.1,
        values="int8",
    ),
    "dgc(0.1, vectors=OneBit())": tw.dgc(0.1, vectors=tw.OneBit()),
    "doublesqueeze(OneBit(block=1024))": tw.doublesqueeze(tw.OneBit(block=1024)),
    "doublesqueeze(TopK(0.01))": tw.doublesqueeze(tw.TopK(0.01)),
    "clan(Dither(4))": tw.clan(tw.Dither(4)),
    "clan(OneBit())": tw.clan(tw.OneBit()),
    "sparseloco(0.125)": tw.sparseloco(0.125),
    "sparseloco(0.25, decay=0.5, values='4bit', two_way=False)": tw.sparseloco(
        0.25, decay=0.5, values="4bit", two_way=False
    ),
}
OTHERS = [
    tw.Recipe(push=tw.OneBit(), push_feedback=tw.Residual(rescale=True)),
    tw.Recipe(push_feedback=tw.chain(tw.Clip(1.0, scope="tensor"), tw.Momentum(0.5, mask=False))),
    tw.Recipe(
        push=tw.by_name(
            {
                "fc.*": tw.TopK(0.01),
                "*bias": tw.small_as(tw.Float16(), below=9, otherwise=tw.OneBit()),
            },
            otherwise=tw.warmup(tw.RandomK(0.25), steps=3, ratios=(0.5, 0.25)),
        ),
        pull=tw.unless_dense_is_cheaper(tw.Dither(2, levels="natural"), exchange="allgather"),
    ),
]
ALL = [*NAMED.values(), *OTHERS]


@pytest.mark.parametrize("recipe", ALL, ids=typed_recipe)
def test_what_is_stored_is_read_as_it_was(recipe: tw.Recipe) -> None:
    assert read_stored_recipe(stored_recipe(recipe)) == recipe


@pytest.mark.parametrize("recipe", ALL, ids=typed_recipe)
def test_a_repr_that_was_stored_before_is_still_read(recipe: tw.Recipe) -> None:
    assert read_stored_recipe(repr(recipe)) == recipe
    assert same_recipe(recipe, repr(recipe))


@pytest.mark.parametrize("recipe", ALL, ids=typed_recipe)
def test_what_is_shown_can_be_typed(recipe: tw.Recipe) -> None:
    assert read_recipe(typed_recipe(recipe)) == recipe


@pytest.mark.parametrize("text", NAMED)
def test_a_named_recipe_is_shown_by_its_name(text: str) -> None:
    assert typed_recipe(NAMED[text]) == text
    assert typed_stored_recipe(stored_recipe(NAMED[text])) == text


def test_recipes_that_differ_are_not_the_same() -> None:
    for recipe in ALL:
        assert [other for other in ALL if same_recipe(other, stored_recipe(recipe))] == [recipe]


@dataclass(frozen=True)
class Ternary:
    """A codec as a first version of a package has it."""

    name: ClassVar[str] = "ternary"
    wire_id: ClassVar[int] = 0xFF01
    sparse: ClassVar[bool] = False
    levels: int = 3

    def encode(self, x: torch.Tensor, *, seed: int) -> bytearray:
        raise NotImplementedError

    @staticmethod
    def decode(payload: Payload, out: torch.Tensor) -> None:
        raise NotImplementedError

    def max_nbytes(self, numel: int) -> int:
        return numel


def test_a_new_setting_with_a_default_does_not_change_what_is_stored() -> None:
    @dataclass(frozen=True)
    class Later(Ternary):
        stochastic: bool = False
        blocks: tuple[int, ...] = field(default_factory=tuple)

    Later.__name__ = "Ternary"
    old, new = tw.Recipe(push=Ternary(5)), tw.Recipe(push=Later(5))
    assert stored_recipe(old) == stored_recipe(new) == "recipe/1 Recipe(push=Ternary(levels=5))"
    assert same_recipe(new, stored_recipe(old))  # though no package with that codec is installed
    assert not same_recipe(new, stored_recipe(tw.Recipe(push=Ternary(4))))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("recipe/2 Recipe()", "format '2', but this version of Thinwire reads 1"),
        ("recipe/1 Recipe(push=Unheard(3))", "cannot read the recipe .*Unheard is not known here"),
        ("recipe/1 Recipe(push=OneBit(flavour=1))", "cannot read the recipe .*flavour"),
        ("recipe/1 OneBit()", "not a stored recipe"),
        ("recipe/1 dense", "needs parentheses"),
        ("", "invalid syntax"),
    ],
)
def test_a_stored_recipe_that_cannot_be_read_says_why(text: str, words: str) -> None:
    with pytest.raises(tw.ConfigError, match=words):
        read_stored_recipe(text)
    assert not same_recipe(tw.dense(), text)


@pytest.mark.parametrize(
    "text", ["tw.dgc(0.001)", "thinwire.dgc(0.001)", " dgc ", "dgc(ratio=1e-3)"]
)
def test_recipes_may_be_typed_as_in_python(text: str) -> None:
    assert read_recipe(text) == tw.dgc(0.001)


@pytest.mark.parametrize(
    ("text", "suggested"),
    [
        ("onebit", "doublesqueeze(OneBit())"),
        ("OneBit", "doublesqueeze(OneBit())"),
        ("OneBit(block=64)", "doublesqueeze(OneBit(block=64))"),
        ("topk(0.1)", "doublesqueeze(TopK(0.01))"),
        ("tw.Dither", "doublesqueeze(Dither(4))"),
        ("Dither()", "doublesqueeze(Dither(4))"),
        ("TopK(5)", "doublesqueeze(TopK(0.01))"),
        ("OneBit(blok=3)", "doublesqueeze(OneBit())"),
        ("onbit", "doublesqueeze(OneBit())"),
        ("top_k(0.1)", "doublesqueeze(TopK(0.01))"),
        ("dgs", "dgc"),
    ],
)
def test_what_is_suggested_is_a_recipe(text: str, suggested: str) -> None:
    with pytest.raises(tw.ConfigError) as error:
        read_recipe(text)
    assert f"did you mean {suggested}?" in str(error.value)
    read_recipe(suggested)


@pytest.mark.parametrize("text", ["Residual()", "residual", "Momentum(0.9)", "by_nam({})"])
def test_a_part_that_is_no_codec_suggests_no_part_but_examples(text: str) -> None:
    with pytest.raises(tw.ConfigError) as error:
        read_recipe(text)
    assert str(error.value) == f"{text} is not a recipe; examples: {EXAMPLES}"


TOKENS = ["Recipe(", "OneBit(", "TopK(", "by_name(", "chain(", "warmup(", "tw.", "dgc(", "Chain("]
TOKENS += [
    "push=",
    "ratio=",
    "stages=",
    "otherwise=",
    ")",
    ")",
    ")",
    "(",
    ",",
    "{",
    "}",
    ":",
    "[",
    "]",
]
TOKENS += ["1", "-", "0.5", "1e999", "None", "nan", "'x'", "*", "lambda", " ", "\n", "\0", "é"]


@given(st.one_of(st.text(), st.lists(st.sampled_from(TOKENS), max_size=30).map("".join)))
def test_any_text_is_a_recipe_or_a_config_error(text: str) -> None:
    for read in (read_recipe, read_stored_recipe):
        for whole in (text, f"{PREFIX}1 {text}", f"Recipe(push={text})"):
            with contextlib.suppress(tw.ConfigError):
                assert isinstance(read(whole), tw.Recipe)


@pytest.mark.parametrize("text", ["-" * 9000 + "1", "(" * 9000, "TopK(" * 3000, "x" * 20_000])
def test_text_that_is_made_to_be_expensive_is_refused(text: str) -> None:
    with pytest.raises(tw.ConfigError):
        read_stored_recipe(text)
