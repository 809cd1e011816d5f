"""Reads the documentation: its files, and the lines of prose in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

DOCS = (
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/decisions").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
    ROOT / "benchmarks/README.md",
    ROOT / "CONTRIBUTING.md",
)
TITLE_PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md")


def name_of(path: Path) -> str:
    """A file as a reader of a failure knows it."""
    return str(path.relative_to(ROOT))


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines and their numbers, without code and tables."""
    fenced, after_blank = False, True
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        fenced = fenced != fence
        code = after_blank and line.startswith("    ")
        if not (fenced or fence or code or line.lstrip().startswith("|")):
            yield number, line
        after_blank = not line.strip() or code
