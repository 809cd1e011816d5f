"""``typed_recipe``: a recipe as a user would type it, by its name where it has one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from thinwire import recipe as recipes
from thinwire.codec import policy, registry, schedule
from thinwire.codec.chunk_topk import ChunkTopK
from thinwire.codec.topk import TopK
from thinwire.errors import ConfigError
from thinwire.feedback.base import NoFeedback
from thinwire.feedback.clip import Clip
from thinwire.feedback.momentum import AdamMomentum, Momentum
from thinwire.feedback.residual import decay_of
from thinwire.recipe import Recipe
from thinwire.recipe_text import read_stored_recipe, written


def typed_recipe(recipe: Recipe) -> str:
    """The recipe as a user would type it: by its name where it has one."""
    for function, settings in _guesses(recipe):
        if function(**settings) == recipe:
            words = _arguments(settings, inspect.signature(function))
            return f"{function.__name__}({', '.join(words)})"
    return written(recipe)


def typed_stored_recipe(stored: str) -> str:
    """A stored recipe as a user would type it; if this version cannot read it, its beginning."""
    try:
        return typed_recipe(read_stored_recipe(stored))
    except ConfigError:
        return repr(stored[:200])


def _guesses(recipe: Recipe) -> Iterator[tuple[Callable[..., Recipe], dict[str, Any]]]:
    """Named recipes, with settings, that this one may equal."""
    yield recipes.dense, {}
    yield from _clipping(recipe, None)
    yield recipes.clan, {"codec": None}
    yield from _local(recipe, None)
    for codec in _of(set(registry.codecs().values()), recipe.push):
        yield from _clipping(recipe, codec)
        yield recipes.clan, {"codec": codec}
        yield from _local(recipe, codec)
        if isinstance(codec, TopK):
            yield recipes.dgc, _dgc_settings(recipe, codec)
        if isinstance(codec, ChunkTopK):
            yield recipes.sparseloco, _sparseloco_settings(recipe, codec)


def _clipping(recipe: Recipe, codec: Any) -> Iterator[tuple[Callable[..., Recipe], dict[str, Any]]]:
    feedback = recipe.push_feedback
    clip_norm = next((clip.norm for clip in _of({Clip}, feedback)), None)
    settings = {"codec": codec, "clip_norm": clip_norm}
    yield recipes.doublesqueeze, settings
    yield recipes.momentum_sgd, settings
    for shared in _of({AdamMomentum}, feedback):
        yield recipes.adam, {**settings, "first": shared.first, "most_gap": shared.most_gap}


def _local(recipe: Recipe, codec: Any) -> Iterator[tuple[Callable[..., Recipe], dict[str, Any]]]:
    outer = recipe.outer
    if outer is None:
        return
    yield recipes.local_average, {"codec": codec}
    outer_settings = {"lr": outer.lr, "momentum": outer.momentum, "delay": outer.delay}
    yield recipes.diloco, {"codec": codec, **outer_settings}


def _sparseloco_settings(recipe: Recipe, kept: ChunkTopK) -> dict[str, Any]:
    return {
        "ratio": kept.ratio,
        "decay": decay_of(recipe.push_feedback),
        "values": kept.values,
        "two_way": recipe.pull_feedback != NoFeedback(),
    }


def _dgc_settings(recipe: Recipe, kept: TopK) -> dict[str, Any]:
    push, pull, feedback = recipe.push, recipe.pull, recipe.push_feedback
    momentum = next(_of({Momentum}, feedback), Momentum(0.0, mask=False))
    plain_vectors = isinstance(pull, policy.VectorsAs)
    return {
        "ratio": kept.ratio,
        "momentum": momentum.momentum,
        "nesterov": momentum.nesterov,
        "mask": momentum.mask,
        "clip_norm": next((clip.norm for clip in _of({Clip}, feedback)), None),
        "warmup_steps": next((warmup.steps for warmup in _of({schedule.Warmup}, push)), 0),
        "pull_ratio": next((topk.ratio for topk in _of({TopK}, pull)), None),
        "values": kept.values,
        "vectors": None if plain_vectors else getattr(push, "codec", None),
    }


def _of(types: set[Any], value: object) -> Iterator[Any]:
    """The parts of ``value`` that are of these types."""
    if type(value) in types:
        yield value
    if isinstance(value, tuple):
        for part in value:
            yield from _of(types, part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _of(types, getattr(value, field.name))


def _arguments(settings: Mapping[str, Any], signature: inspect.Signature) -> Iterator[str]:
    for number, (name, parameter) in enumerate(signature.parameters.items()):
        if number == 0 and settings[name] is not None:
            yield written(settings[name])
        elif name in settings and settings[name] != parameter.default:
            yield f"{name}={written(settings[name])}"
