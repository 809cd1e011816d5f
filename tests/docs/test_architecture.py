"""docs/architecture.md names files, functions and rooms as they are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT
from tests.docs.walks import DDP, LAB, PACKAGE, PUSH, RESTART, names_in, sections, walk

ROW = re.compile(r"^\| `([\w/]+)` \|(?: (\d+) \|)?", re.MULTILINE)

all_walks = pytest.mark.parametrize("title", [DDP, PUSH, RESTART])


def rooms_in(package: Path) -> set[str]:
    folders = {path.parent for path in package.rglob("*.py")} - {package}
    return {str(folder.relative_to(package)) for folder in folders}


def layers() -> dict[str, int]:
    """The layer of each room by the contract that the linter checks, from the lowest on."""
    contract = (ROOT / "pyproject.toml").read_text().partition('containers = ["thinwire"]\n')[2]
    [first, *_] = re.findall(r"^layers = (\[.*?^\])", contract, re.DOTALL | re.MULTILINE)
    rows = enumerate(reversed(ast.literal_eval(first)), 1)
    return {room: number for number, row in rows for room in re.findall(r"\w+", row)}


@all_walks
def test_files_and_functions_of_a_walk_exist(title: str) -> None:
    steps = walk(title).steps
    assert len(steps) >= walk(title).numbered > 20
    files = {file: names_in(PACKAGE / file) for file, _ in steps if (PACKAGE / file).exists()}
    assert [f"{file}: {name}" for file, name in steps if name not in files.get(file, {})] == []


@all_walks
def test_a_walk_crosses_as_many_files_as_it_says(title: str) -> None:
    assert len(walk(title).files) == walk(title).crossed_count


@all_walks
def test_files_that_are_only_asked_exist_and_are_not_in_the_walk(title: str) -> None:
    asked = walk(title).asked
    assert len(asked) == len(set(asked)) == walk(title).asked_count
    assert [file for file in asked if not (PACKAGE / file).exists()] == []
    assert set(asked).isdisjoint(walk(title).files)


@pytest.mark.parametrize("package", [PACKAGE, LAB], ids=lambda path: path.name)
def test_every_room_is_in_the_table(package: Path) -> None:
    rows = {room for room, _ in ROW.findall(sections()[f"Rooms of `src/{package.name}`"])}
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    assert rooms_in(package) <= rows <= rooms_in(package) | modules


def test_files_of_the_lab_outside_a_room_are_named() -> None:
    """In the text below the table of rooms."""
    _, _, below = sections()["Rooms of `src/thinwire_lab`"].rpartition(" |\n")
    modules = {path.name for path in LAB.glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"`(\w+\.py)`", below)) == modules


def test_layers_are_those_that_the_linter_checks() -> None:
    rows = ROW.findall(sections()["Rooms of `src/thinwire`"])
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert modules <= {room for room, _ in rows}
    stated = {room: int(layer) for room, layer in rows}
    assert stated == {room: layers()[room.split("/")[0]] for room in stated}
