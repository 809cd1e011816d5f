"""What pyproject.toml promises: the version that the package says, and extras that code uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import thinwire as tw

ROOT = Path(__file__).parents[2]
FOR_DEVELOPERS = {"dev", "fuzz"}
SOURCES = {path: path.read_text() for path in (ROOT / "src").rglob("*.py")}


def extras() -> dict[str, list[str]]:
    """The packages that each extra installs, as pyproject.toml lists them."""
    text = (ROOT / "pyproject.toml").read_text()
    (table,) = re.findall(r"^\[project\.optional-dependencies\]\n(.*?)^\[", text, re.S | re.M)
    found = re.findall(r"^(\w+) = \[(.*?)\]$", table, re.S | re.M)
    return {
        name: [Requirement(r).name for r in re.findall(r'"(.+?)"', body)] for name, body in found
    }


def imports(package: str) -> list[Path]:
    pattern = re.compile(rf'^\s*(?:import|from) {package}\b|import_module\("{package}\b', re.M)
    return [path for path, text in SOURCES.items() if pattern.search(text)]


def test_the_version_is_that_of_pyproject() -> None:
    (written,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert tw.__version__ == written


@pytest.mark.parametrize("extra", sorted(extras().keys() - FOR_DEVELOPERS))
def test_every_package_of_an_extra_is_used(extra: str) -> None:
    for package in extras()[extra]:
        assert imports(package), f"no module imports {package}: remove it from the extra {extra!r}"


def test_every_extra_that_an_error_names_exists() -> None:
    named = {name for text in SOURCES.values() for name in re.findall(r"thinwire\[(\w+)\]", text)}
    assert named <= extras().keys()
    assert named
