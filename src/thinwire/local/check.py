"""``check_local``: recipes and networks that local steps refuse, each with what to use instead."""

from __future__ import annotations

from collections.abc import Iterable

from thinwire.codec.dense import BFloat16, Float16, Float32
from thinwire.codec.policy import as_policy
from thinwire.errors import ConfigError
from thinwire.feedback.base import stages_of
from thinwire.feedback.clip import Clip
from thinwire.gradient.pieces import Key
from thinwire.optim.takeover import momentum_of
from thinwire.recipe import Outer, Recipe

_DENSE = Float32 | Float16 | BFloat16


def check_local(recipe: Recipe, buffers: Iterable[Key] = ()) -> Outer:
    """Refuse what does not fit changes of weights. ``buffers`` are those of the network. Returns
    what global weights do with their mean."""
    if recipe.shares_momentum or momentum_of(recipe) is not None:
        raise ConfigError(
            "this recipe is for gradients and holds their momentum, but local steps send changes "
            "of weights: use tw.local_average() or tw.diloco()"
        )
    stages = (*stages_of(recipe.push_feedback), *stages_of(recipe.pull_feedback))
    if recipe.rescales or any(isinstance(stage, Clip) for stage in stages):
        raise ConfigError(
            "changes of weights have no learning rate and must not be clipped: clip gradients "
            "before optimizer.step(), and use tw.local_average() or tw.diloco()"
        )
    if recipe.outer is None:
        raise ConfigError(
            "this recipe is for gradients, and local steps send changes of weights: use "
            "tw.local_average(codec), or give it outer=tw.Outer()"
        )
    for way in (recipe.push, recipe.pull):
        for key in buffers:
            codec = as_policy(way).choose(key, step=0, workers=2)
            if not isinstance(codec, _DENSE):
                raise ConfigError(
                    f"this recipe sends the buffer {key.name} as {codec!r}, which can make a "
                    "variance negative: let 1-D tensors travel in 16 bits, as "
                    "tw.local_average(codec) does, or use tw.vectors_as(...)"
                )
    return recipe.outer
