"""What the documentation points at is there: links, and paths of files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, ROOT, TITLE_PAGES, name_of

LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"`([^`\s]+)`")
PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)+\.(?:py|cc|h|md|json|toml)")
HOMES = (
    ROOT,
    ROOT / "src",
    ROOT / "src/thinwire",
    ROOT / "src/thinwire_lab",
    ROOT / "src/thinwire_lab/bench",
    ROOT / "docs",
    ROOT / "native",
)
"""Paths are written from the top, or from the folder that a text is about."""

TEMPLATE = re.compile(r"\b(NAME|ROOM|LIBRARY)\b|\.\.\.")


def anchors(path: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_there(page: Path, target: str, anchor: str) -> bool:
    if target.startswith(("http://", "https://")):
        return True
    path = (page.parent / target).resolve() if target else page
    return path.exists() and (not anchor or anchor in anchors(path))


@pytest.mark.parametrize("page", [*DOCS, *TITLE_PAGES], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text())
    assert [link for link in links if not is_there(page, *link)] == []


@pytest.mark.parametrize("page", [*DOCS, *TITLE_PAGES], ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    words = CODE.findall(page.read_text())
    paths = [word for word in words if PATH.fullmatch(word) and not TEMPLATE.search(word)]
    missing = [path for path in paths if not any(list(home.glob(path)) for home in HOMES)]
    assert missing == []
