"""``local_steps``: no paper's: recipes of local steps beside a mean of gradients in every step."""

from __future__ import annotations

from dataclasses import replace

from thinwire.checks import check_choice
from thinwire.codec.dense import BFloat16, Float32
from thinwire.codec.dither import Dither
from thinwire.codec.policy import Chooser, vectors_as
from thinwire.feedback.base import NoFeedback
from thinwire.local.rounds import Rounds
from thinwire.recipe_text import read_recipe, written
from thinwire_lab.reproduce.plan import Experiment, Reproduction, Variant

_TASK = "local-gpt-adamw"
_FOUR_BITS = vectors_as(BFloat16(), otherwise=Dither(4))
_SHORT, _LONG = 9, 40
"""Epochs of 100 steps: 900 steps are 56 rounds of 16, and 4,000 are 250."""

_SMOKE = "A tiny GPT on the source of Python's standard library: only to see that all of it runs."
_SMALL = "632,000 parameters, 16 rows of 64 for each worker, the rate of dense training."
_NOTES = (
    "Rates are those of dense training, and the same in all rows; nothing was tuned.",
    "Every worker keeps an AdamW of its own. What is evaluated are the global weights, of the last "
    "whole round.",
)


def local_steps(scale: str) -> Reproduction:
    """Smoke has a tiny GPT and two steps a round."""
    check_choice(scale, ("smoke", "small"), owner="local", field="scale")
    every = 2 if scale == "smoke" else 16
    experiments = [_experiment("local-short", _SHORT, every, scale)]
    if scale == "small":
        experiments.append(_experiment("local-long", _LONG, every, scale))
    return Reproduction("local", "Local steps", tuple(experiments), _NOTES)


def _experiment(name: str, epochs: float, every: int, scale: str) -> Experiment:
    length = 2 if scale == "smoke" else epochs
    return Experiment(
        name,
        f"GPT, characters, AdamW, {round(length * 100):,} steps" if scale == "small" else "GPT",
        "",
        _SMOKE if scale == "smoke" else _SMALL,
        _TASK,
        scale,
        _variants(every),
        epochs=length,
    )


def _variants(every: int) -> tuple[Variant, ...]:
    return (
        Variant("dense", "dense, in every step", "dense", main=True),
        Variant("adam", "compressed Adam, in every step", "adam()", main=True),
        _alone("average", "float32 averaging", "local_average(Float32())", every, main=True),
        _alone("onebit", "1 bit", "local_average()", every, main=True),
        _alone("outer", "float32, outer 0.8 / 0.5", _outer("Float32()"), every, main=True),
        _alone("outer-onebit", "1 bit, outer 0.8 / 0.5", _outer(), every, main=True),
        _alone("sparse", "1/64 in 2 bits", "sparseloco()", every, main=True),
        _alone("sparse-one-way", "1/64 there alone", "sparseloco(two_way=False)", every),
        _alone("diloco", "DiLoCo: float32, outer 0.7 / 0.9", "diloco(Float32())", every),
        _alone("diloco-onebit", "DiLoCo in 1 bit", "diloco()", every),
        _alone("half", "1 bit, half as many steps a round", _outer(), every // 2),
        _alone("twice", "1 bit, twice as many", _outer(), every * 2),
        _alone("one-way", "1 bit there, float32 back", _back(Float32()), every),
        _alone("back-4", "1 bit there, 4 bits back", _back(_FOUR_BITS), every),
        Variant(
            "overlap",
            "1 bit, outer 0.8 / 0.5, 2 fragments, delay 4",
            _outer(),
            rounds=Rounds(every, min(4, every // 2), 2),
        ),
    )


def _outer(codec: str = "") -> str:
    first = f"{codec}, " if codec else ""
    return f"diloco({first}lr=0.8, momentum=0.5)"


def _back(codec: Chooser) -> str:
    """One bit there, with the outer step of ``_outer``; back without feedback."""
    recipe = read_recipe(_outer())
    return written(replace(recipe, pull=codec, pull_feedback=NoFeedback()))


def _alone(name: str, label: str, recipe: str, every: int, *, main: bool = False) -> Variant:
    return Variant(name, f"{label}, H = {every}", recipe, main=main, rounds=Rounds(every))
