"""The updates that a log still has: finding them by version, and deleting the oldest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from thinwire.errors import LogError
from thinwire.server.disk import explained, sync_folder
from thinwire.server.framefile import FrameFile
from thinwire.server.index import Index, Place
from thinwire.server.retention import Kept, LogSettings, removable
from thinwire.server.scan import Scan
from thinwire.server.segment import Segment, segment_path
from thinwire.server.snapshot import find_snapshots
from thinwire.wire.frame import Frame

_SNAPSHOTS = 2
"""How many are kept: if the newest cannot be read, the one before it and more records do."""


class History:
    """``version`` is the highest of all updates, ``since`` the lowest that ``updates`` can follow.

    Made from the segments of earlier openings; the log tells it what is added.
    """

    def __init__(self, folder: Path, segments: Sequence[Scan]) -> None:
        self.version = segments[0].head.version if segments else 0
        self.since = self.version
        self._folder = folder
        self._index = Index()
        self._finished: list[Kept] = []
        for one in segments:
            self.add(one.updates)
            # The last is replaced if it is empty, so that restarts alone make no segments.
            if one.count or one is not segments[-1]:
                kept = Kept(one.head.number, one.path, one.end, one.next_record, one.version)
                self._finished.append(kept)
        self.next_segment = segments[-1].head.number + (segments[-1].count > 0) if segments else 0

    @property
    def nbytes(self) -> int:
        """Of the segments that are finished."""
        return sum(one.nbytes for one in self._finished)

    def add(self, places: Iterable[Place]) -> None:
        """Updates that were committed."""
        for place in places:
            self.version = max(self.version, place.version)
            self._index.add(place)

    def finish(self, segment: Segment) -> None:
        """A segment that no record will be added to."""
        kept = Kept(segment.number, segment.path, segment.end, segment.next_record, self.version)
        self._finished.append(kept)

    def updates(self, *, after: int) -> Iterator[Frame]:
        """See ``Log.updates``."""
        if after < self.since:
            raise LogError(
                f"log: updates after version {after} are wanted, but {self._folder} has only those "
                f"after {self.since}: start from a checkpoint, or keep more of the log"
            )
        return self._read(self._index.after(after))

    def _read(self, places: Iterable[Place]) -> Iterator[Frame]:
        for number, neighbours in groupby(places, key=lambda place: place.segment):
            with FrameFile(segment_path(self._folder, number)) as file:
                for place in neighbours:
                    yield file.read_at(place.offset)

    def compact(self, settings: LogSettings, *, nbytes: int) -> None:
        """Delete old snapshots, and the segments that neither they nor the settings want.

        ``nbytes`` are those of all segments, finished or not.
        """
        snapshots = list(find_snapshots(self._folder).items())
        needed = snapshots[-_SNAPSHOTS][0] if len(snapshots) >= _SNAPSHOTS else 0
        gone = removable(
            self._finished, settings, needed=needed, version=self.version, nbytes=nbytes
        )
        if gone:
            self._finished = self._finished[len(gone) :]
            self._index.drop_before(gone[-1].number + 1)
            self.since = gone[-1].version
        self._delete([path for _, path in snapshots[:-_SNAPSHOTS]] + [one.path for one in gone])

    def _delete(self, paths: Iterable[Path]) -> None:
        """One by one, oldest first: whatever a crash or a power cut leaves has no gap."""
        for path in paths:
            with explained(path, "deleted"):
                path.unlink()
                sync_folder(self._folder)
