"""``History``: finds the updates of a log by version, and deletes the oldest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from thinwire.errors import LogError
from thinwire.files import sync_folder
from thinwire.server.log.files import FrameFile, explained
from thinwire.server.log.records import Index, Place
from thinwire.server.log.scan import Scan
from thinwire.server.log.segment import Segment, segment_path
from thinwire.server.log.settings import Kept, LogSettings, removable
from thinwire.server.log.snapshot import find_snapshots
from thinwire.wire.frame import Frame

_SNAPSHOTS = 2
"""How many are kept: if the newest is damaged, the one before it and more records do."""


class History:
    """``version`` is the highest of all updates, ``since`` the lowest that ``updates`` can follow.

    It begins with the segments of earlier openings; the log adds to it.
    """

    def __init__(self, folder: Path, segments: Sequence[Scan]) -> None:
        self.version = segments[0].head.version if segments else 0
        self.since = self.version
        self._folder = folder
        self._index = Index()
        self._finished: list[Kept] = []
        for scan in segments:
            self.add(scan.updates)
            # The last is replaced if it is empty, so that restarts alone make no segments.
            if scan.count or scan is not segments[-1]:
                kept = Kept(scan.head.number, scan.path, scan.end, scan.next_record, scan.version)
                self._finished.append(kept)
        self.next_segment = segments[-1].head.number + (segments[-1].count > 0) if segments else 0

    @property
    def nbytes(self) -> int:
        """Of all finished segments."""
        return sum(segment.nbytes for segment in self._finished)

    def add(self, places: Iterable[Place]) -> None:
        """Add committed updates."""
        for place in places:
            self.version = max(self.version, place.version)
            self._index.add(place)

    def finish(self, segment: Segment) -> None:
        """Add a segment that is complete."""
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
        """Delete old snapshots, and the segments that neither they nor the settings need.

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
        self._delete(
            [path for _, path in snapshots[:-_SNAPSHOTS]] + [segment.path for segment in gone]
        )

    def _delete(self, paths: Iterable[Path]) -> None:
        """Delete one by one, oldest first, so that a crash or power cut leaves no gap."""
        for path in paths:
            with explained(path, "deleted"):
                path.unlink()
                sync_folder(self._folder)
