"""choice.py: the recipe that fits an optimizer, and words about pairs that do not fit."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import nn
from torch.optim.optimizer import Optimizer

import thinwire as tw
from thinwire.choice import check_pair, choose_recipe
from thinwire.recipe import Recipe


def params() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(4, 4))]


MOMENTUM = torch.optim.SGD(params(), lr=0.1, momentum=0.9)
SGD = torch.optim.SGD(params(), lr=0.1)
ADAMW = torch.optim.AdamW(params())
LANS = tw.optim.LANS(params(), 0.1)
OPTIMIZERS: list[tuple[Optimizer, Recipe]] = [
    (SGD, tw.doublesqueeze()),
    (tw.optim.SGD(params(), 0.1, momentum=0.9), tw.doublesqueeze()),
    (MOMENTUM, tw.momentum_sgd()),
    (ADAMW, tw.adam()),
    (torch.optim.Adam(params()), tw.adam()),
    (tw.optim.AdamW(params()), tw.adam()),
    (LANS, tw.clan()),
    (torch.optim.RMSprop(params()), Recipe(push=tw.BFloat16(), pull=tw.BFloat16())),
]


@pytest.mark.parametrize(("optimizer", "recipe"), OPTIMIZERS, ids=lambda x: type(x).__name__)
def test_the_recipe_goes_by_what_the_optimizer_adds(optimizer: Optimizer, recipe: Recipe) -> None:
    assert tw.recipe_for(optimizer) == recipe
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_pair(recipe, optimizer)


def test_a_choice_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "thinwire"):
        choose_recipe(None, ADAMW, owner="compress_ddp", force=False)
    assert caplog.messages == ["compress_ddp: adam(), for AdamW"]


def test_without_recipe_and_optimizer_it_says_what_to_give() -> None:
    with pytest.raises(tw.ConfigError, match="give a recipe, or the optimizer"):
        choose_recipe(None, None, owner="compress_ddp", force=False)


@pytest.mark.parametrize("codec", [tw.OneBit(), tw.TopK(0.01), tw.OneBit(block=1024)], ids=repr)
def test_a_pair_that_diverges_is_refused_with_what_to_use(codec: tw.OneBit | tw.TopK) -> None:
    recipe = tw.doublesqueeze(codec)
    with pytest.raises(tw.ConfigError, match=r"diverges with SGD with momentum.*tw\.momentum_sgd"):
        check_pair(recipe, MOMENTUM)
    check_pair(recipe, MOMENTUM, force=True)


@pytest.mark.parametrize("optimizer", [ADAMW, LANS, torch.optim.RMSprop(params())], ids=repr)
def test_a_pair_that_loses_warns_with_the_number(optimizer: Optimizer) -> None:
    with pytest.warns(UserWarning, match=r"loses with .* at the rate of dense training \(.*use tw"):
        check_pair(tw.dgc(0.01, momentum=0.0), optimizer)


@pytest.mark.parametrize(
    "recipe",
    [
        tw.dense(),
        tw.clan(tw.Dither(8)),
        Recipe(tw.Float16(), tw.Residual(), tw.Float16(), tw.Residual()),
        tw.dgc(0.001, momentum=0.9),
    ],
    ids=repr,
)
def test_recipes_that_send_all_or_keep_momentum_are_fine(recipe: Recipe) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_pair(recipe, MOMENTUM)


@pytest.mark.parametrize(
    ("recipe", "optimizer", "use"),
    [
        (tw.doublesqueeze(tw.OneBit(block=192)), SGD, "tw.doublesqueeze()"),
        (tw.doublesqueeze(tw.TopK(0.00123)), SGD, "tw.doublesqueeze()"),
        (tw.dgc(0.00123), MOMENTUM, "tw.momentum_sgd() if bytes allow it"),
        (tw.momentum_sgd(tw.OneBit(block=192)), MOMENTUM, "tw.momentum_sgd()"),
        (tw.adam(tw.TopK(0.00123)), ADAMW, "tw.adam()"),
    ],
    ids=repr,
)
def test_a_pair_that_loses_on_some_networks_is_logged_once_with_the_number(
    recipe: Recipe, optimizer: Optimizer, use: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_pair(recipe, optimizer, force=True)
    assert not caplog.messages
    for _ in range(2):
        choose_recipe(recipe, optimizer, owner="compress_ddp", force=False)
    [text] = caplog.messages
    assert "can lose with " in text
    assert "at the rate of dense training (" in text
    assert text.endswith(f": use {use}")


def test_what_is_chosen_is_never_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for optimizer, recipe in OPTIMIZERS:
        check_pair(recipe, optimizer)
    check_pair(tw.momentum_sgd(clip_norm=1.0), MOMENTUM)
    check_pair(tw.doublesqueeze(clip_norm=1.0), SGD)
    assert not caplog.messages


def test_the_table_has_a_line_for_each_pair() -> None:
    lines = str(tw.recipes()).splitlines()
    assert len(lines) == len(tw.recipes()) >= 6
    assert any("diverges" in line and "use tw.momentum_sgd" in line for line in lines)
