"""Tests that need a real data set, which is not in the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from thinwire_lab.data.files import VARIABLE


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where the folder ``name`` is not in $THINWIRE_DATA."""
    folder = os.environ.get(VARIABLE)
    found = bool(folder) and (Path(str(folder)) / name).is_dir()
    return pytest.mark.skipif(not found, reason=f"needs {name} in ${VARIABLE}")
