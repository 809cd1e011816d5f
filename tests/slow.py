"""Cases that take long, and differ little from one that every run of the tests has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case of ``parametrize`` for ``-m slow`` only."""
    return pytest.param(*values, marks=pytest.mark.slow)


def first(values: Iterable[Any]) -> list[Any]:
    """All cases, of which only the first is not slow."""
    head, *others = values
    return [head, *map(slow, others)]
