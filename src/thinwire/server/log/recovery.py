"""``recover``: read what a log holds after a stop of any kind. It never writes.

A torn tail is what a crash leaves, and a value. All other damage is a LogError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from thinwire.errors import LogError, ProtocolError
from thinwire.server.log.files import FrameFile
from thinwire.server.log.records import FIRST_KIND
from thinwire.server.log.scan import Damage, Scan, scan
from thinwire.server.log.segment import find_segments
from thinwire.server.log.snapshot import Snapshot, find_snapshots, read_snapshot
from thinwire.wire.frame import Frame


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a server starts from: ``snapshot``, and then ``frames()``, from record ``first`` on.

    ``cut`` is the torn tail, if there was one. ``damaged_snapshots`` has a sentence for every newer
    snapshot that cannot be read; an older one and more frames do as well.
    """

    snapshot: Snapshot | None
    first: int
    segments: tuple[Scan, ...]
    cut: Damage | None
    damaged_snapshots: tuple[str, ...]

    @property
    def next_record(self) -> int:
        return self.segments[-1].next_record if self.segments else 0

    def frames(self) -> Iterator[Frame]:
        """The records after the snapshot, in the order in which they were appended."""
        for segment in self.segments:
            if segment.next_record > self.first:
                yield from _records(segment, skip=self.first - segment.head.first)


def _records(segment: Scan, *, skip: int) -> Iterator[Frame]:
    with FrameFile(segment.path) as file:
        try:
            while file.offset < segment.end:
                frame = file.read()
                if frame is None or frame.kind >= FIRST_KIND:
                    continue
                if skip <= 0:
                    yield frame
                skip -= 1
        except ProtocolError as error:
            raise LogError(f"log: {file.path}, byte {file.offset}: {error}") from error


def recover(folder: Path) -> Recovery:
    """Read and check all of a log. Raises LogError, with the place, where it is not whole."""
    scans = {number: scan(path) for number, path in find_segments(folder).items()}
    record, snapshot, damaged = _newest_snapshot(folder)
    segments = undamaged(scans, record)
    check_chain(segments)
    cut = segments[-1].damage if segments else None
    recovery = Recovery(snapshot, record, tuple(segments), cut, damaged)
    _check_reach(folder, recovery)
    return recovery


def _newest_snapshot(folder: Path) -> tuple[int, Snapshot | None, tuple[str, ...]]:
    damaged: list[str] = []
    for record, path in reversed(find_snapshots(folder).items()):
        try:
            return record, read_snapshot(path, record=record), tuple(damaged)
        except LogError as error:
            damaged.append(str(error))
    return 0, None, tuple(damaged)


def undamaged(scans: Mapping[int, Scan | Damage], record: int) -> list[Scan]:
    """These segments, if all are whole but for a torn tail of the last; else LogError.

    ``record`` is that of the newest snapshot, or 0.
    """
    segments: list[Scan] = []
    for number, scanned in scans.items():
        damage = scanned if isinstance(scanned, Damage) else scanned.damage
        if damage is not None and not (damage.is_torn_tail and number == max(scans)):
            following = scans.get(number + 1)
            spare = isinstance(following, Scan) and following.head.first <= record
            raise LogError(f"log: {damage}; it was accepted once. {_advice(damage, spare=spare)}")
        if isinstance(scanned, Scan):
            _check_name(scanned, number)
            segments.append(scanned)
    return segments


def _check_name(segment: Scan, number: int) -> None:
    if segment.head.number != number:
        raise LogError(
            f"log: {segment.path}, byte 0: is segment {segment.head.number}, its name says "
            f"{number}: give it its name again"
        )


def _advice(damage: Damage, *, spare: bool) -> str:
    if spare:
        return (
            "Restore the file from a copy; or move it and all segments before it away: a snapshot "
            "has their state, only workers that were away for long will need a checkpoint"
        )
    return "Restore the file from a copy, or start with an empty folder from a checkpoint"


def check_chain(segments: Sequence[Scan]) -> None:
    """Raise LogError unless each follows the one before, in the same run."""
    for before, after in pairwise(segments):
        if after.head.number != before.head.number + 1:
            raise LogError(
                f"log: segments {before.head.number + 1} to {after.head.number - 1} are missing, "
                f"between {before.path} and {after.path.name}: restore them from a copy"
            )
        if after.head.first != before.next_record or after.run != before.run:
            raise LogError(
                f"log: {after.path}, byte 0: begins with record {after.head.first} of run "
                f"{after.run}, expected {before.next_record} of run {before.run}: is it of another "
                "log? Restore it from a copy"
            )


def _check_reach(folder: Path, recovery: Recovery) -> None:
    """Raise LogError unless the log has all records from the snapshot on, and the snapshot none
    that the log has not.
    """
    begin = recovery.segments[0].head.first if recovery.segments else 0
    run = recovery.segments[0].run if recovery.segments else None
    right_run = recovery.snapshot is None or recovery.snapshot.run == run
    # All that is left of a log, and it cannot be read.
    nothing_left = not recovery.segments and bool(recovery.damaged_snapshots)
    if begin <= recovery.first <= recovery.next_record and right_run and not nothing_left:
        return
    known = "no snapshot" if recovery.snapshot is None else f"a snapshot of record {recovery.first}"
    reasons = "; ".join(
        [*recovery.damaged_snapshots, *([str(recovery.cut)] if recovery.cut else [])]
    )
    raise LogError(
        f"log: {folder} has records {begin} to {recovery.next_record} and {known}, so that some "
        f"are missing{f' ({reasons})' if reasons else ''}: restore the folder from a copy, or "
        "start with an empty one from a checkpoint"
    )
