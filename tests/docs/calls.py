"""Which functions of the package run, in all threads that start while this watches."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tests.docs.walks import PACKAGE

Calls = set[tuple[str, str]]
"""File below the package, and name without what it is in."""


@contextmanager
def watched_threads(calls: Calls) -> Iterator[None]:
    """Note the calls of threads that are started in here, for as long as they live."""
    threading.setprofile(_recorder(calls))
    try:
        yield
    finally:
        threading.setprofile(None)


@contextmanager
def watched(calls: Calls) -> Iterator[None]:
    """Note the calls of this thread in here."""
    sys.setprofile(_recorder(calls))
    try:
        yield
    finally:
        sys.setprofile(None)


def _recorder(calls: Calls) -> Callable[[FrameType, str, object], None]:
    root = f"{PACKAGE}/"

    def record(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            calls.add((code.co_filename.removeprefix(root), code.co_name))

    return record
