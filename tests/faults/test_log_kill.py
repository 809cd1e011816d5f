"""SIGKILL while a log is being written: everything that was reported as committed is there."""

from __future__ import annotations

import os
import random
import signal
import struct
from pathlib import Path

import pytest

from tests.log_cases import RUN, push, snapshot_of, update
from thinwire.server.log.log import Log
from thinwire.server.log.recovery import Recovery
from thinwire.server.log.settings import LogSettings
from thinwire.wire.frame import Frame, pack

KILLS = 30
LARGE = bytes(1_000_000)
_COUNT = struct.Struct("<Q")
SETTINGS = LogSettings(fsync="off", segment_nbytes=1 << 22, keep_nbytes=1 << 23)


def record(number: int) -> Frame:
    """A function of its number alone; now and then large, so that a kill may meet its writing."""
    payload = LARGE if number % 4 == 0 else bytes([number % 251]) * (number * 7919 % 500)
    return update(number, payload=payload) if number % 3 else push(number, payload=payload)


def append_for_ever(folder: Path, pipe: int) -> None:
    log, recovery = Log.open(folder, SETTINGS, new_run=RUN)
    covered = recovery.first
    while True:
        for number in range(log.next_record, log.next_record + 1 + log.next_record % 4):
            log.append(pack(record(number)))
        os.write(pipe, _COUNT.pack(log.commit()))
        if log.next_record >= covered + 12:
            covered = log.next_record
            log.snapshot(snapshot_of(log, covered))


def start(folder: Path) -> tuple[int, int]:
    """A process that appends, and the pipe on which it reports commits.

    Forked, because thirty fresh ones would spend a minute importing torch, which this one does not
    use.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            append_for_ever(folder, writer)
        finally:
            os._exit(1)
    os.close(writer)
    return pid, reader


def kill_after(pid: int, pipe: int, reports: int, turns: int) -> int:
    """Kill it once it has reported so often, and a little later; the last commit it reported.

    Later by some turns of a loop, because right after a report it is not writing.
    """
    with open(pipe, "rb") as reader:
        data = reader.read(reports * _COUNT.size)
        for _ in range(turns):
            pass
        os.kill(pid, signal.SIGKILL)
        data += reader.read()
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "it ended by itself"
    return int(_COUNT.unpack(data[-_COUNT.size :])[0])


def check(recovery: Recovery, committed: int) -> None:
    assert recovery.next_record >= committed
    if recovery.snapshot is not None:
        assert recovery.snapshot.counters == {"count": recovery.first}
    for number, frame in enumerate(recovery.frames(), start=recovery.first):
        assert frame == record(number)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_nothing_that_was_committed_is_lost(tmp_path: Path) -> None:
    chance = random.Random(0)  # noqa: S311  # when to kill, not a secret
    committed = 0
    for _ in range(KILLS):
        pid, pipe = start(tmp_path)
        reported = kill_after(pid, pipe, chance.randint(1, 5), chance.randint(0, 99_999))
        assert reported > committed
        log, recovery = Log.open(tmp_path, SETTINGS, new_run=RUN)
        with log:
            check(recovery, reported)
        committed = reported
    assert log.history.since > 0  # compaction was killed as well
