"""Small logs to try things on: records, and what is in a folder of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from thinwire.server.log.log import Log
from thinwire.server.log.settings import LogSettings
from thinwire.server.log.snapshot import Snapshot
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.frame import SERVER, Frame, pack
from thinwire.wire.messages import Push, Update, encode

RUN = 7
QUICK = LogSettings(fsync="off")


def push(step: int, *, worker: int = 0, payload: bytes = b"push") -> Frame:
    entries = (Entry(0, EncodedBytes(1, 1, memoryview(payload))),)
    return encode(Push(step, 0.1, entries), run=RUN, epoch=1, worker=worker, step=step)


def update(version: int, *, piece: int = 0, payload: bytes = b"update") -> Frame:
    entries = (Entry(piece, EncodedBytes(1, 1, memoryview(payload))),)
    return encode(Update(version, entries), run=RUN, epoch=1, worker=SERVER, step=0)


def groups_of(count: int) -> list[list[Frame]]:
    """Steps 1 to ``count``: a push of each of two workers and the update, committed together."""
    return [
        [push(step), push(step, worker=1, payload=b"x" * step), update(step)]
        for step in range(1, count + 1)
    ]


def open_log(folder: Path, settings: LogSettings = QUICK) -> Log:
    return Log.open(folder, settings, new_run=RUN)[0]


def write(log: Log, groups: Iterable[Iterable[Frame]]) -> None:
    for group in groups:
        for frame in group:
            log.append(pack(frame))
        log.commit()


def make_log(
    folder: Path, groups: Iterable[Iterable[Frame]], settings: LogSettings = QUICK
) -> None:
    """A log of these groups, after a clean stop."""
    with open_log(folder, settings) as log:
        write(log, groups)


def snapshot_of(log: Log, count: int) -> Snapshot:
    """Any snapshot that can be told from others."""
    return Snapshot(log.run, log.epoch, counters={"count": count})


def recovered(folder: Path) -> list[Frame]:
    log, recovery = Log.open(folder, QUICK, new_run=RUN)
    with log:
        return list(recovery.frames())


def flat(groups: Iterable[Iterable[Frame]]) -> list[Frame]:
    return [frame for group in groups for frame in group]


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("segment-*"))


def snapshots(folder: Path) -> list[Path]:
    return sorted(folder.glob("snapshot-*"))


def flip(path: Path, offset: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))
