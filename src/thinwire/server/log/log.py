"""``Log``: a write-ahead log of accepted pushes and updates, in the order they were accepted.

It knows frames, not what they mean. One process owns a folder, and one thread at a time a Log.
docs/log-format.md says what is in the files, and why a crash at any moment loses nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from thinwire.errors import LocalProtocolError, LogError
from thinwire.files import TEMPORARY, Buffer
from thinwire.server.log.files import cut_file, explained, list_folder, lock_folder
from thinwire.server.log.history import History
from thinwire.server.log.records import SALT_NBYTES, Group, Head
from thinwire.server.log.recovery import Recovery, recover
from thinwire.server.log.segment import Segment, segment_path
from thinwire.server.log.settings import DEFAULT_SETTINGS, LogSettings
from thinwire.server.log.snapshot import Snapshot, find_snapshots, snapshot_path, write_snapshot
from thinwire.wire.frame import Frame

_logger = logging.getLogger(__name__)


class Log:
    """``append`` frames, then ``commit`` them: all of them are durable, or none.

    When a write fails nothing of its group counts, and every later ``append`` and ``commit`` raises
    the same LogError: what was committed is safe, and opening the log again goes on from there.
    """

    def __init__(
        self, folder: Path, settings: LogSettings, recovery: Recovery, *, new_run: int, lock: int
    ) -> None:
        """Use ``open``."""
        last = recovery.segments[-1] if recovery.segments else None
        self.run = last.run if last else new_run
        self.epoch = last.epoch + 1 if last else 1
        self.history = History(folder, recovery.segments)
        self._folder, self._settings, self._lock = folder, settings, lock
        self._group = Group()
        self._failed: LogError | None = None
        self._segment = self._new_segment(
            self.history.next_segment,
            recovery.next_record,
            replaces=last is not None and not last.count,
        )

    @classmethod
    def open(
        cls, folder: Path, settings: LogSettings = DEFAULT_SETTINGS, *, new_run: int
    ) -> tuple[Log, Recovery]:
        """Open or make the log in a folder; returns it and what it held.

        Checks every byte. ``run`` is that of the log, ``new_run`` if there was none. ``epoch`` is
        one more than at the last opening, and on the disk. A torn tail is cut, with a warning.
        Raises LogError if the log is damaged elsewhere or another process has it, and, before it
        writes anything, if the folder cannot be listed.
        """
        with explained(folder, "made"):
            folder.mkdir(parents=True, exist_ok=True)
        list_folder(folder)
        lock = lock_folder(folder)
        try:
            recovery = recover(folder)
            _tidy(folder, recovery)
            log = cls(folder, settings, recovery, new_run=new_run, lock=lock)
        except BaseException:
            os.close(lock)
            raise
        return log, recovery

    @property
    def next_record(self) -> int:
        """How many records were ever committed: the number of the next one."""
        return self._segment.next_record

    @property
    def nbytes(self) -> int:
        """Of all segments, without the snapshots."""
        return self.history.nbytes + self._segment.end

    @property
    def since(self) -> int:
        """The lowest version that ``updates`` can follow."""
        return self.history.since

    def append(self, parts: Sequence[Buffer]) -> None:
        """Add one whole frame, as one or more buffers, to the next commit.

        They are not copied: do not change them until ``commit``.
        """
        self._check()
        self._group.add(parts)

    def commit(self) -> int:
        """Make all that was appended durable, together or not at all; returns ``next_record``."""
        self._check()
        group, self._group = self._group, Group()
        if group.count:
            self._attempt(lambda: self._write(group))
        return self.next_record

    def updates(self, *, after: int) -> Iterator[Frame]:
        """The committed updates of later versions than ``after``, by version, as they are now.

        Those of one version come in the order in which they were appended. Raises LogError if
        ``after`` is below ``history.since``: older ones are deleted.
        """
        return self.history.updates(after=after)

    def snapshot(self, snapshot: Snapshot) -> None:
        """Commit, write ``snapshot`` as the state after that, and delete what is no longer needed.

        A restart then replays only what comes later. If it cannot be written, this raises
        LogError and the log goes on with the older one.
        """
        if (snapshot.run, snapshot.epoch) != (self.run, self.epoch):
            raise LocalProtocolError(
                f"log: a snapshot of run {snapshot.run}, epoch {snapshot.epoch}, "
                f"expected {self.run}, {self.epoch}"
            )
        self.commit()
        self._attempt(self._segment.sync)  # a snapshot must never know more than the log
        path = snapshot_path(self._folder, self.next_record)
        write_snapshot(path, snapshot, record=self.next_record)
        self.history.compact(self._settings, nbytes=self.nbytes)

    def close(self) -> None:
        """Release the folder. What was not committed is lost."""
        if self._lock >= 0:
            self._segment.close()
            os.close(self._lock)
            self._lock = -1
            self._failed = self._failed or LogError(f"log: {self._folder} is closed")

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._failed is not None:
            raise LogError(str(self._failed)) from self._failed

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except LogError as error:
            self._failed = error
            raise

    def _write(self, group: Group) -> None:
        if self._segment.count and self._segment.end >= self._settings.segment_nbytes:
            self._roll()
        start = self._segment.end
        sync = self._settings.fsync == "step"
        self._segment.write(group.parts, count=group.count, nbytes=group.nbytes, sync=sync)
        self.history.add(group.places(self._segment.number, start))

    def _roll(self) -> None:
        full = self._segment
        full.sync()  # only the last segment may have a torn tail
        self._segment = self._new_segment(full.number + 1, full.next_record)
        full.close()
        self.history.finish(full)

    def _new_segment(self, number: int, first: int, *, replaces: bool = False) -> Segment:
        head = Head(number, first, self.history.version, os.urandom(SALT_NBYTES))
        path = segment_path(self._folder, number)
        return Segment(path, head, run=self.run, epoch=self.epoch, replaces=replaces)


def _tidy(folder: Path, recovery: Recovery) -> None:
    """Cut the torn tail, and delete unfinished files."""
    for sentence in recovery.damaged_snapshots:
        _logger.warning("%s; this snapshot is put aside, what came before it is used", sentence)
    _put_aside(folder, newest=-1 if recovery.snapshot is None else recovery.first)
    if recovery.cut is not None:
        _logger.warning(
            "log: %s; its last %d bytes were never committed and are cut",
            recovery.cut,
            recovery.cut.nbytes,
        )
    for last in recovery.segments[-1:]:
        cut_file(last.path, last.end)  # or only synced: another segment will follow this one
    for path in list_folder(folder):
        if path.name.endswith(TEMPORARY):
            with explained(path, "deleted"):
                path.unlink()


def _put_aside(folder: Path, *, newest: int) -> None:
    """Rename snapshots that cannot be read, so that they are not counted as ones to go back to."""
    for record, path in find_snapshots(folder).items():
        if record > newest:
            with explained(path, "renamed"):
                path.rename(path.with_suffix(".damaged"))
