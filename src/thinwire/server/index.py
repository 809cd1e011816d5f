"""Where each update is in a log, by its version. Pure: no files."""

from __future__ import annotations

from bisect import bisect_right, insort_right
from dataclasses import dataclass

from thinwire.server.marks import FILES
from thinwire.wire.body import Reader
from thinwire.wire.messages import Update


@dataclass(frozen=True, slots=True)
class Place:
    """The frame of an update: segment and byte offset."""

    version: int
    segment: int
    offset: int


def place_of(kind: int, body: memoryview, segment: int, offset: int) -> Place | None:
    """The place of a frame at ``offset``, or None if it is no update."""
    if kind != Update.kind:
        return None
    # Every body of an update begins with its version, and this is called for every one of them.
    return Place(Reader("update", body, FILES).uint(8), segment, offset)


class Index:
    """Places by version, those of one version in the order of the log.

    Versions count per piece and pieces close in any order, so they need not come ascending; but as
    they nearly do, adding one takes no time.
    """

    def __init__(self) -> None:
        self._places: list[Place] = []

    def add(self, place: Place) -> None:
        insort_right(self._places, place, key=_version)

    def after(self, version: int) -> list[Place]:
        return self._places[bisect_right(self._places, version, key=_version) :]

    def drop_before(self, segment: int) -> None:
        self._places = [place for place in self._places if place.segment >= segment]


def _version(place: Place) -> int:
    return place.version
