"""What is public is listed, sorted and complete; the error tree is as drawn."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import types

import pytest

import thinwire as tw
from thinwire import errors, optim, testing


@pytest.mark.parametrize("module", [tw, optim, testing], ids=lambda module: module.__name__)
def test_all_is_sorted_and_complete(module: types.ModuleType) -> None:
    names = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    listed = list(module.__all__)
    assert listed == sorted(listed)
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


def test_import_does_not_wait_for_what_few_need() -> None:
    """torch.distributed.checkpoint brings the tensors of torch along: over a second."""
    code = "import sys, thinwire; print('torch.distributed.checkpoint' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert said.stdout == "False\n"
