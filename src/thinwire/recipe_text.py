"""Recipes as text: ``read_recipe`` as users type them, ``stored_recipe`` for files and peers.

Both have the syntax of Python and are read without eval. The stored form begins with its version
and spells every part out, because the meaning of a named recipe such as ``dgc`` may change. It
leaves out defaults: a new setting then does not change the text of recipes that do not use it, and
older versions of Thinwire can read them. In return, the defaults of codecs, policies and feedback
must not change while the version stays the same.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from thinwire import recipe as recipes
from thinwire.codec import policy, registry, schedule
from thinwire.errors import ConfigError, ThinwireError
from thinwire.feedback.base import Chain, NoFeedback, chain
from thinwire.feedback.clip import Clip
from thinwire.feedback.momentum import AdamMomentum, Momentum, SGDMomentum
from thinwire.feedback.residual import Residual
from thinwire.recipe import Recipe

EXAMPLES = (
    "dense, dgc(0.001), doublesqueeze(OneBit()), momentum_sgd(OneBit()), adam, clan(Dither(4))"
)

VERSION = 1
PREFIX = "recipe/"

MOST_CHARACTERS = 1 << 14
"""Of a recipe: text may come from a peer, and parsing it takes time and memory."""

Names = Mapping[str, Callable[..., Any]]

_CODEC_EXAMPLES = {"TopK": "TopK(0.01)", "RandomK": "RandomK(0.01)", "Dither": "Dither(4)"}
_FUNCTIONS: Names = {
    "small_as": policy.small_as,
    "by_name": policy.by_name,
    "vectors_as": policy.vectors_as,
    "by_row": policy.by_row,
    "unless_dense_is_cheaper": policy.unless_dense_is_cheaper,
    "warmup": schedule.warmup,
    "chain": chain,
    "Outer": recipes.Outer,
}
_FEEDBACK: Names = {
    cls.__name__: cls for cls in (NoFeedback, Clip, Momentum, Residual, SGDMomentum, AdamMomentum)
}
_RECIPES: Names = {
    cls.__name__: cls
    for cls in (
        Recipe,
        recipes.dense,
        recipes.dgc,
        recipes.doublesqueeze,
        recipes.momentum_sgd,
        recipes.adam,
        recipes.clan,
        recipes.local_average,
        recipes.diloco,
        recipes.sparseloco,
    )
}
_WRITTEN_AS = {
    policy.SmallAs: "small_as",
    policy.VectorsAs: "vectors_as",
    policy.ByRow: "by_row",
    policy.UnlessDenseIsCheaper: "unless_dense_is_cheaper",
    schedule.Warmup: "warmup",
}
_OLD_NAMES: Names = {
    cls.__name__: cls for cls in (*_WRITTEN_AS, policy.Always, policy.ByName, Chain)
}
"""Further names in the repr of a recipe, which was stored before there was a stored form."""


def read_recipe(text: str) -> Recipe:
    """Parse a recipe such as "dgc(0.001, momentum=0.9)", "tw.dgc()" or "dense".

    Raises ConfigError, with examples.
    """
    tree, names = parse_recipe(text), _names()
    _check_not_a_part(tree, names)
    try:
        value = _call(tree, names) if isinstance(tree, ast.Name) else _value(tree, names)
    except ThinwireError:
        raise
    except Exception as error:  # settings of plug-ins may raise anything
        raise ConfigError(f"recipe {text!r}: {error}; examples: {EXAMPLES}") from error
    if not isinstance(value, Recipe):
        raise ConfigError(f"{text.strip()} is not a recipe; examples: {EXAMPLES}")
    return value


def parse_recipe(text: str) -> ast.expr:
    """The syntax tree of a recipe, without "tw." and "thinwire.". Raises ConfigError."""
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"a recipe of {len(text)} characters, the limit is {MOST_CHARACTERS}")
    try:
        tree: ast.expr = _Unqualified().visit(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"recipe {text[:200]!r}: {why}; examples: {EXAMPLES}") from error
    except (MemoryError, RecursionError):
        raise ConfigError(f"recipe {text[:40]!r}...: nested too deeply") from None
    return tree


def stored_recipe(recipe: Recipe) -> str:
    """The recipe in its stored form."""
    return f"{PREFIX}{VERSION} {written(recipe)}"


def read_stored_recipe(text: str) -> Recipe:
    """Parse what ``stored_recipe`` wrote, or the repr that earlier releases stored.

    Raises ConfigError if this version of Thinwire cannot read it.
    """
    if not text.startswith(PREFIX):
        return _read_expanded(text, {**_names(), **_OLD_NAMES})
    version, _, rest = text.removeprefix(PREFIX).partition(" ")
    if version != str(VERSION):
        raise ConfigError(
            f"a recipe of format {version[:20]!r}, but this version of Thinwire reads {VERSION}: "
            "use the same version everywhere"
        )
    return _read_expanded(rest, _names())


def same_recipe(recipe: Recipe, stored: str) -> bool:
    """Whether ``stored`` is this recipe, written by any version of Thinwire."""
    if stored == stored_recipe(recipe):
        return True  # also with classes that only the user's program knows
    try:
        return read_stored_recipe(stored) == recipe
    except ConfigError:
        return False


def _names() -> Names:
    """What a recipe may call, codecs of plug-ins included, by the name of their class."""
    codecs = {cls.__name__: cls for cls in registry.codecs().values()}
    return {**_RECIPES, **_FUNCTIONS, **codecs, **_FEEDBACK}


class _Unqualified(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in ("tw", "thinwire"):
            return ast.Name(node.attr, ast.Load())
        return node


def _check_not_a_part(tree: ast.expr, names: Names) -> None:
    """Raise ConfigError, with recipes that can be typed, for a part of one such as "onebit"."""
    function = tree.func if isinstance(tree, ast.Call) else tree
    meant = _meant(function.id, names) if isinstance(function, ast.Name) else None
    if meant is None or meant in _RECIPES:
        return
    typed = ast.unparse(tree)
    if meant in {cls.__name__ for cls in registry.codecs().values()}:
        for codec in (typed, _CODEC_EXAMPLES.get(meant, f"{meant}()")):
            if _is_recipe(f"doublesqueeze({codec})"):
                raise ConfigError(f"{typed} is not a recipe: did you mean doublesqueeze({codec})?")
    raise ConfigError(f"{typed} is not a recipe; examples: {EXAMPLES}")


def _is_recipe(text: str) -> bool:
    try:
        read_recipe(text)
    except ConfigError:
        return False
    return True


def _read_expanded(text: str, names: Names) -> Recipe:
    tree = parse_recipe(text)
    try:
        value = _value(tree, names)
    except Exception as error:  # as in read_recipe
        raise ConfigError(
            f"this version of Thinwire cannot read the recipe {text[:200]}: {error}"
        ) from error
    if not isinstance(value, Recipe):
        raise ConfigError(f"{text[:200]} is not a stored recipe")
    return value


def _value(tree: ast.expr, names: Names) -> Any:
    if isinstance(tree, ast.Call):
        return _call(tree, names)
    if isinstance(tree, ast.Tuple):
        return tuple(_value(part, names) for part in tree.elts)
    if isinstance(tree, ast.Dict):
        keys = [_value(key, names) for key in tree.keys if key is not None]
        return dict(zip(keys, (_value(value, names) for value in tree.values), strict=True))
    if isinstance(tree, ast.Name):
        _find(tree.id, names)
        raise ConfigError(
            f"{tree.id} needs parentheses, with its settings in them if any: {tree.id}()"
        )
    try:
        return ast.literal_eval(tree)
    except ValueError as error:  # its own message has the address of a node
        raise ConfigError(
            f"{ast.unparse(tree)} is not a value for a recipe; examples: {EXAMPLES}"
        ) from error


def _call(tree: ast.Call | ast.Name, names: Names) -> Any:
    function = tree.func if isinstance(tree, ast.Call) else tree
    name = function.id if isinstance(function, ast.Name) else ast.unparse(function)
    make = _find(name, names)
    if isinstance(tree, ast.Name):
        return make()
    named = {word.arg: _value(word.value, names) for word in tree.keywords if word.arg is not None}
    return make(*(_value(argument, names) for argument in tree.args), **named)


def _find(name: str, names: Names) -> Callable[..., Any]:
    if name in names:
        return names[name]
    meant = _meant(name, names)
    if meant is not None:
        raise ConfigError(f"{name} is not known here; did you mean {meant}?")
    raise ConfigError(f"{name} is not known here, expected one of {', '.join(sorted(names))}")


def _meant(name: str, names: Names) -> str | None:
    """The one of ``names`` that is nearest to what was typed; a codec may go by its own name."""
    if name in names:
        return name
    in_lower_case = {known.lower(): known for known in names}
    in_lower_case |= {own: cls.__name__ for own, cls in registry.codecs().items()}
    nearest = difflib.get_close_matches(name.lower(), in_lower_case, n=1)
    return in_lower_case[nearest[0]] if nearest else None


def written(value: object) -> str:
    """The text that makes ``value``: a recipe, or a part of one."""
    if isinstance(value, policy.Always):
        return written(value.codec)
    if isinstance(value, Chain):
        return f"chain({', '.join(map(written, value.stages))})"
    if isinstance(value, policy.ByName):
        patterns = ", ".join(f"{glob!r}: {written(chosen)}" for glob, chosen in value.patterns)
        return f"by_name({{{patterns}}}, otherwise={written(value.otherwise)})"
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    name = _WRITTEN_AS.get(type(value), type(value).__name__)
    return f"{name}({', '.join(_settings(value))})"


def _settings(value: Any) -> Iterator[str]:
    """The arguments that make ``value``, without those that have their default."""
    for number, field in enumerate(fields(value)):
        setting, default = getattr(value, field.name), _default(field)
        if isinstance(setting, policy.Always):
            setting = setting.codec
        if field.init and setting != default:
            positional = number == 0 and default is MISSING
            yield written(setting) if positional else f"{field.name}={written(setting)}"


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()
