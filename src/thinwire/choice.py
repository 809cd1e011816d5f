"""``recipe_for``: the recipe that fits an optimizer. ``recipes``: pairs of both, as measured.

The same optimizer at the same rate must give the same result. Where it is known that a pair does
not, users hear it before they train: with the number, and with what to use instead.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache

import torch
from torch.optim.optimizer import Optimizer

from thinwire.codec.base import Codec, is_unbiased
from thinwire.codec.dense import BFloat16, Float16, Float32
from thinwire.codec.policy import Policy, as_policy
from thinwire.codec.sparse import Nonzero
from thinwire.errors import ConfigError
from thinwire.feedback.base import stages_of
from thinwire.feedback.residual import Residual
from thinwire.gradient.pieces import Key
from thinwire.optim.lans import LANS
from thinwire.optim.sgd import SGD
from thinwire.optim.takeover import momentum_of
from thinwire.recipe import Recipe, adam, check_recipe, clan, doublesqueeze, momentum_sgd
from thinwire.recipe_names import typed_recipe

_logger = logging.getLogger(__name__)

_LATE = 1 << 40
_MATRIX = Key("weight", (4096, 4096))
"""A step after all schedules, and a tensor that every policy compresses if it does any."""


class Adds(Enum):
    """What an optimizer adds to the weights, which decides what should be compressed."""

    GRADIENT = "SGD"
    MOMENTUM = "SGD with momentum"
    ADAM = "Adam, AdamW"
    LANS = "LANS"
    OTHER = "any other"


class Sends(Enum):
    """What a recipe sends."""

    ALL = "all of the gradient, in full or unbiased"
    LATE = "a part of the gradient now, the rest later"
    VELOCITY = "a part of each worker's own momentum"
    MOMENTUM = "the optimizer's momentum"


class Verdict(Enum):
    EQUAL = "equal to dense"
    NEAR = "nearly equal"
    """Equal on some networks or at lower rates, and a few per cent of loss above on others. Of what
    an optimizer's chosen recipe sends too, that is so with other codecs than its."""
    LOSES = "loses"
    DIVERGES = "diverges"


@dataclass(frozen=True, slots=True)
class Pair:
    """A recipe with an optimizer, at the rate of dense training (``docs/optimizers.md``)."""

    optimizer: Adds
    sends: Sends
    example: str
    verdict: Verdict
    measured: str
    use: str = ""
    """What to use instead."""

    def __str__(self) -> str:
        instead = f"; use {self.use}" if self.use else ""
        return (
            f"{self.optimizer.value:<18} {self.example:<30} {self.verdict.value:<15} "
            f"{self.measured}{instead}"
        )


_PAIRS = (
    Pair(
        Adds.GRADIENT,
        Sends.LATE,
        "doublesqueeze()",
        Verdict.EQUAL,
        "a held-out loss of 0.996 against 1.025 on CIFAR-10",
    ),
    Pair(
        Adds.GRADIENT,
        Sends.LATE,
        "doublesqueeze(OneBit())",
        Verdict.NEAR,
        "a held-out loss of 1.056 against 1.025 on CIFAR-10, but equal at lower rates",
        "tw.doublesqueeze()",
    ),
    Pair(
        Adds.MOMENTUM,
        Sends.LATE,
        "doublesqueeze(OneBit())",
        Verdict.DIVERGES,
        "12.5 % against 90.6 % of pictures right on Fashion-MNIST",
        "tw.momentum_sgd()",
    ),
    Pair(
        Adds.MOMENTUM,
        Sends.MOMENTUM,
        "momentum_sgd()",
        Verdict.EQUAL,
        "90.6 % against 90.6 % of pictures right on Fashion-MNIST",
    ),
    Pair(
        Adds.MOMENTUM,
        Sends.VELOCITY,
        "dgc(0.001)",
        Verdict.NEAR,
        "90.3 % against 90.6 % of pictures right and 2.8 % more loss on Fashion-MNIST; equal on "
        "CIFAR-10 and Penn Treebank",
        "tw.momentum_sgd() if bytes allow it",
    ),
    Pair(
        Adds.MOMENTUM,
        Sends.MOMENTUM,
        "momentum_sgd(OneBit())",
        Verdict.NEAR,
        "2.9 % more loss than dense on Fashion-MNIST, at the same accuracy",
        "tw.momentum_sgd()",
    ),
    Pair(
        Adds.ADAM,
        Sends.LATE,
        "doublesqueeze(OneBit())",
        Verdict.LOSES,
        "a held-out loss of 2.14 against 1.56, of a GPT on characters",
        "tw.adam()",
    ),
    Pair(
        Adds.ADAM,
        Sends.MOMENTUM,
        "adam()",
        Verdict.EQUAL,
        "a held-out loss of 1.55 against 1.56, of a GPT on characters",
    ),
    Pair(
        Adds.ADAM,
        Sends.MOMENTUM,
        "adam(TopK(0.01))",
        Verdict.NEAR,
        "a held-out loss of 2.22 against 2.02, of a GPT on characters in 480 steps",
        "tw.adam()",
    ),
    Pair(
        Adds.LANS,
        Sends.LATE,
        "clan(OneBit(block=1024))",
        Verdict.LOSES,
        "a held-out loss of 2.34 against 1.68, of a GPT on characters",
        "tw.clan()",
    ),
    Pair(
        Adds.LANS,
        Sends.ALL,
        "clan()",
        Verdict.EQUAL,
        "a held-out loss of 1.66 against 1.68, of a GPT on characters",
    ),
    Pair(
        Adds.OTHER,
        Sends.LATE,
        "doublesqueeze(OneBit())",
        Verdict.LOSES,
        "not measured, but optimizers that keep averages of gradients lose",
        "tw.Recipe(push=tw.BFloat16(), pull=tw.BFloat16())",
    ),
)


def recipes() -> Pairs:
    """All pairs of recipe and optimizer that were measured; ``print`` shows a table."""
    return Pairs(_PAIRS)


class Pairs(tuple[Pair, ...]):
    """Pairs that print as a table."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def recipe_for(optimizer: Optimizer) -> Recipe:
    """The recipe that reaches the result of dense training with this optimizer, at its rate.

    For an optimizer that is not known it is the mildest one: 16 bits each way.
    """
    adds = _adds(optimizer)
    if adds is Adds.GRADIENT:
        return doublesqueeze()
    if adds is Adds.MOMENTUM:
        return momentum_sgd()
    if adds is Adds.ADAM:
        return adam()
    if adds is Adds.LANS:
        return clan()
    return Recipe(push=BFloat16(), pull=BFloat16())


def choose_recipe(
    recipe: Recipe | None, optimizer: Optimizer | None, *, owner: str, force: bool
) -> Recipe:
    """``recipe``, or if there is none, one that fits ``optimizer``, which is logged.

    Warns of a pair that is known to lose, and refuses one that diverges, unless ``force`` is set.
    """
    if recipe is None:
        if optimizer is None:
            raise ConfigError(
                f"{owner}: give a recipe, or the optimizer, and the recipe that fits is chosen"
            )
        recipe = recipe_for(optimizer)
        kind = type(optimizer).__name__
        _logger.info("%s: %s, for %s", owner, typed_recipe(recipe), kind)
        return recipe
    check_recipe(recipe, owner=owner)
    if recipe.outer is not None:
        raise ConfigError(
            f"{owner}: this recipe is for local steps: use it with tw.local_steps, or with "
            "local_steps=... of tw.Client and tw.VirtualCluster"
        )
    if optimizer is not None:
        check_pair(recipe, optimizer, force=force)
    return recipe


def check_pair(recipe: Recipe, optimizer: Optimizer, *, force: bool = False) -> None:
    """Warn if this pair is known to lose; raise ConfigError if it diverges. One that loses on some
    networks only is logged as a warning. Not with ``force``.
    """
    if force:
        return
    adds, sends = _adds(optimizer), _sends(recipe)
    for pair in _PAIRS:
        if (pair.optimizer, pair.sends) != (adds, sends) or pair.verdict is Verdict.EQUAL:
            continue
        kind = type(optimizer).__name__ if adds is Adds.OTHER else adds.value
        at_rate = f"with {kind} at the rate of dense training"
        if pair.verdict is Verdict.NEAR:
            if not _has_codecs_of(recipe, recipe_for(optimizer)):
                typed = typed_recipe(recipe)
                of = "" if typed == pair.example else f"{pair.example}: "
                _log_once(f"{typed} can lose {at_rate} ({of}{pair.measured}): use {pair.use}")
            continue
        text = f"{typed_recipe(recipe)} {pair.verdict.value} {at_rate} ({pair.measured})"
        text = f"{text}: use {pair.use}"
        if pair.verdict is Verdict.DIVERGES:
            raise ConfigError(f"{text}, or force=True if you must")
        warnings.warn(f"{text} (force=True if you know)", stacklevel=4)


def _has_codecs_of(recipe: Recipe, chosen: Recipe) -> bool:
    same = (recipe.push, recipe.pull) == (chosen.push, chosen.pull)
    return same and _sends(recipe) is _sends(chosen)


@cache
def _log_once(text: str) -> None:
    _logger.warning("%s", text)


def delays(recipe: Recipe) -> bool:
    """Whether what comes back from an exchange holds parts of earlier gradients."""
    return _sends(recipe) is not Sends.ALL


def _adds(optimizer: Optimizer) -> Adds:
    if isinstance(optimizer, LANS):
        return Adds.LANS
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        return Adds.ADAM
    if isinstance(optimizer, SGD):  # its momentum is that of its weight decay
        return Adds.GRADIENT
    if isinstance(optimizer, torch.optim.SGD):
        keeps = any(group["momentum"] for group in optimizer.param_groups)
        return Adds.MOMENTUM if keeps else Adds.GRADIENT
    return Adds.OTHER


def _sends(recipe: Recipe) -> Sends:
    if recipe.shares_momentum:
        return Sends.MOMENTUM
    if momentum_of(recipe) is not None:
        return Sends.VELOCITY
    feedback = (*stages_of(recipe.push_feedback), *stages_of(recipe.pull_feedback))
    delays = any(isinstance(stage, Residual) for stage in feedback)
    return Sends.LATE if delays and any(map(_is_coarse, _codecs(recipe))) else Sends.ALL


def _codecs(recipe: Recipe) -> Iterator[Codec]:
    for way in (recipe.push, recipe.pull):
        policy: Policy = as_policy(way)
        yield policy.choose(_MATRIX, step=_LATE, workers=2)


def _is_coarse(codec: Codec) -> bool:
    fine = Float32 | Float16 | BFloat16 | Nonzero
    return not isinstance(codec, fine) and not is_unbiased(codec)
