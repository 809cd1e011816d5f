"""How the documentation is written: wrapped lines, and plain words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, TITLE_PAGES, name_of, prose_lines

MOST_COLUMNS = 100

VAGUE = re.compile(r"\b(whoever|nobody|somebody)\b", re.IGNORECASE)
"""Words that hide who acts: write the worker, the rank, the reader."""


@pytest.mark.parametrize("path", [*DOCS, *TITLE_PAGES], ids=name_of)
def test_prose_is_wrapped_at_100_columns(path: Path) -> None:
    long = [
        f"{name_of(path)}:{number}: {len(line)} columns"
        for number, line in prose_lines(path.read_text())
        if len(line) > MOST_COLUMNS and " " in line.strip()  # a link alone cannot be wrapped
    ]
    assert not long


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_prose_names_who_acts(path: Path) -> None:
    found = [
        f"{name_of(path)}:{number}: {match[0]}"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := VAGUE.search(line))
    ]
    assert not found


def test_code_and_tables_are_not_prose_but_what_follows_them_is() -> None:
    text = "a\n```\ncode\n```\nb\n\n| c | d |\n\n    indented\n    code\n\n* e\n    more of e\n"
    assert [line for _, line in prose_lines(text) if line] == ["a", "b", "* e", "    more of e"]
