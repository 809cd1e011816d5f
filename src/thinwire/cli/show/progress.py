"""``ProgressDisplay``: progress bars on a terminal, shown within a ``with``."""

from __future__ import annotations

from typing import TypeVar

import rich.progress

Kind = TypeVar("Kind", bound="ProgressDisplay")


class ProgressDisplay:
    """A class that extends it updates ``_progress``."""

    def __init__(self, progress: rich.progress.Progress) -> None:
        self._progress = progress

    def __enter__(self: Kind) -> Kind:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()
