"""Bars on a terminal that are there while something goes on."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

import rich.progress

Kind = TypeVar("Kind", bound="Bars")


class Bars:
    """Shows ``bars`` within a ``with``."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars

    def __enter__(self: Kind) -> Kind:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
