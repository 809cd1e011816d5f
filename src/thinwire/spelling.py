"""Recipes as people type them on a command line, in the words of Python, read without eval."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Mapping
from typing import Any

from thinwire import recipe as recipes
from thinwire.codec import policy, registry, schedule
from thinwire.errors import ConfigError, ThinwireError
from thinwire.feedback.base import NoFeedback, chain
from thinwire.feedback.clip import Clip
from thinwire.feedback.momentum import Momentum
from thinwire.feedback.residual import Residual
from thinwire.recipe import Recipe

EXAMPLES = "dense, dgc(0.001), doublesqueeze(OneBit()), doublesqueeze(TopK(0.01)), clan(Dither(4))"


def read_recipe(text: str) -> Recipe:
    """The recipe that ``text`` spells, such as "dgc(0.001, momentum=0.9)" or "dense"."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        found = _call(tree) if isinstance(tree, ast.Name) else _value(tree)
    except (SyntaxError, ValueError, TypeError) as error:
        if isinstance(error, ThinwireError):
            raise
        raise ConfigError(f"recipe {text!r}: {error}; examples: {EXAMPLES}") from error
    if not isinstance(found, Recipe):
        raise ConfigError(f"recipe {text!r} is no recipe; examples: {EXAMPLES}")
    return found


def _names() -> Mapping[str, Callable[..., Any]]:
    """What may be called. Codecs of plug-ins are known by their class's name, too."""
    recipe_names = ("Recipe", "dense", "dgc", "doublesqueeze", "clan")
    policy_names = ("small_as", "by_name", "vectors_as", "unless_dense_is_cheaper")
    return {
        **{name: getattr(recipes, name) for name in recipe_names},
        **{name: getattr(policy, name) for name in policy_names},
        **{cls.__name__: cls for cls in registry.codecs().values()},
        "warmup": schedule.warmup,
        "chain": chain,
        **{cls.__name__: cls for cls in (NoFeedback, Clip, Momentum, Residual)},
    }


def _value(tree: ast.expr) -> Any:
    if isinstance(tree, ast.Call):
        return _call(tree)
    if isinstance(tree, ast.Dict):
        keys = [_value(key) for key in tree.keys if key is not None]
        return dict(zip(keys, map(_value, tree.values), strict=True))
    if isinstance(tree, ast.Name):
        _find(tree.id)
        raise ConfigError(
            f"{tree.id} needs parentheses, with its settings in them if any: {tree.id}()"
        )
    try:
        return ast.literal_eval(tree)
    except ValueError as error:  # it would tell the address of a node
        raise ConfigError(
            f"{ast.unparse(tree)} is no value for a recipe; examples: {EXAMPLES}"
        ) from error


def _call(tree: ast.Call | ast.Name) -> Any:
    function = tree.func if isinstance(tree, ast.Call) else tree
    name = function.id if isinstance(function, ast.Name) else ast.unparse(function)
    found = _find(name)
    if isinstance(tree, ast.Name):
        return found()
    named = {word.arg: _value(word.value) for word in tree.keywords if word.arg is not None}
    return found(*map(_value, tree.args), **named)


def _find(name: str) -> Callable[..., Any]:
    known = _names()
    if name in known:
        return known[name]
    in_lower_case = {one.lower(): one for one in known}
    nearest = difflib.get_close_matches(name.lower(), in_lower_case, n=1)
    if nearest:
        raise ConfigError(f"{name} is not known here; did you mean {in_lower_case[nearest[0]]}?")
    raise ConfigError(f"{name} is not known here, expected one of {', '.join(sorted(known))}")
