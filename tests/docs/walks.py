"""The walks of docs/architecture.md, as lists of files and names."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.docs.markdown import ROOT

PACKAGE, LAB = ROOT / "src/thinwire", ROOT / "src/thinwire_lab"

_STEP = re.compile(r"`([\w/]+\.py)`:\s+`([\w.]+)`")
_CROSSED = re.compile(r"\*\*This walk crosses (\d+)\s+files\.\*\*")
_ASKED = re.compile(r"Only\s+asked\s+on\s+the\s+way,\s+(\d+)\s+files:\s+((?:`[\w/]+\.py`,?\s*)+)")
_NUMBER = re.compile(r"^\d+\. ", re.MULTILINE)

DDP, PUSH, RESTART = (
    'A gradient through DDP, exchange "sharded"',
    "A push through a server",
    "A restart of a server from its log",
)


@dataclass(frozen=True)
class Walk:
    """``crossed_count`` and ``asked_count`` are what the text states."""

    numbered: int
    steps: list[tuple[str, str]]
    crossed_count: int
    asked: list[str]
    asked_count: int

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.steps}


@cache
def sections() -> dict[str, str]:
    """The text below each heading of the second level."""
    text = (ROOT / "docs/architecture.md").read_text()
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def walk(title: str) -> Walk:
    text = sections()[title]
    [crossed] = _CROSSED.findall(text)
    asked_count, asked = next(iter(_ASKED.findall(text)), ("0", ""))
    return Walk(
        len(_NUMBER.findall(text)),
        _STEP.findall(text),
        int(crossed),
        re.findall(r"[\w/]+\.py", asked),
        int(asked_count),
    )


def names_in(path: Path) -> dict[str, type[ast.AST]]:
    """Every class, function and method of a file, qualified by what it is in."""

    def names(body: list[ast.stmt], prefix: str) -> dict[str, type[ast.AST]]:
        found: dict[str, type[ast.AST]] = {}
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found[f"{prefix}{node.name}"] = type(node)
                found |= names(node.body, f"{prefix}{node.name}.")
        return found

    return names(ast.parse(path.read_text()).body, "")
