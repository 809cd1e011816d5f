"""``local_steps``: no paper's: recipes of local steps beside a mean of gradients in every step."""

from __future__ import annotations

from thinwire.checks import check_choice
from thinwire.local.rounds import Rounds
from thinwire_lab.reproduce.plan import Experiment, Reproduction, Variant

_TASK = "local-gpt-adamw"
_SHORT, _LONG = 9, 40
"""Epochs of 100 steps: 900 steps are 56 rounds of 16, and 4,000 are 250."""

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
        "632,000 parameters, 16 rows of 64 for each worker, the rate of dense training.",
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
        _alone("diloco", "DiLoCo: float32, outer 0.7 / 0.9", "diloco(Float32())", every),
        _alone("diloco-onebit", "DiLoCo in 1 bit", "diloco()", every),
        _alone("half", "1 bit, half as many steps a round", _outer(), every // 2),
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


def _alone(name: str, label: str, recipe: str, every: int, *, main: bool = False) -> Variant:
    return Variant(name, f"{label}, H = {every}", recipe, main=main, rounds=Rounds(every))
