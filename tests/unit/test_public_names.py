"""What is public is listed, sorted and complete; the error tree is as drawn."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import thinwire as tw
from thinwire import errors, optim, testing


def typed_names() -> set[str]:
    """The names that type checkers see in the package."""
    tree = ast.parse(Path(tw.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        f"{node.module}.{alias.asname}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_names_are_where_type_checkers_see_them() -> None:
    homes = {f"{module}.{name}" for name, module in tw._HOMES.items()}
    assert typed_names() == homes | {"thinwire.optim"}
    assert list(tw.__all__) == sorted({*tw._HOMES, "optim"})
    for name in tw.__all__:
        assert name in dir(tw)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'thinwire' has no attribute 'OneByte'"):
        tw.OneByte  # noqa: B018


@pytest.mark.parametrize("module", [optim, testing], ids=lambda module: module.__name__)
def test_all_is_complete(module: types.ModuleType) -> None:
    names = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    listed = list(module.__all__)  # in the order that ruff wants
    assert len(listed) == len(set(listed))
    modules = {name for name in listed if isinstance(getattr(module, name), types.ModuleType)}
    assert set(listed) - modules == names - {"annotations"}


@pytest.mark.parametrize("name", tw.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(tw, name))


def drawn_tree() -> dict[str, tuple[str, ...]]:
    """Class name to the names of its bases, as the docstring of errors.py draws them."""
    tree: dict[str, tuple[str, ...]] = {}
    path: list[tuple[int, str]] = []
    for line in inspect.getdoc(errors).splitlines():  # type: ignore[union-attr]  # it has one
        found = re.match(r"^( *)([A-Z]\w+)(?: \((\w+)\))?", line)
        if found is None or not hasattr(errors, found[2]):
            continue
        depth = len(found[1])
        path = [(d, name) for d, name in path if d < depth]
        drawn = (path[-1][1] if path else "Exception",)
        tree[found[2]] = drawn + ((found[3],) if found[3] else ())
        path.append((depth, found[2]))
    return tree


def test_the_error_tree_is_as_drawn() -> None:
    classes = {
        name: tuple(base.__name__ for base in value.__bases__)
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert drawn_tree() == classes


def test_every_error_is_public() -> None:
    assert set(drawn_tree()) <= set(tw.__all__)


def test_one_except_catches_all_of_them() -> None:
    for name in drawn_tree():
        assert issubclass(getattr(errors, name), tw.ThinwireError)


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ("import thinwire.cli.main; thinwire.cli.main.commands()", "torch"),
        # It brings the tensors of torch along: over a second.
        ("from thinwire import *", "torch.distributed.checkpoint"),
    ],
)
def test_import_does_not_wait_for_what_few_need(code: str, module: str) -> None:
    script = f"import sys; {code}; print({module!r} in sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert printed.stdout == "False\n"
