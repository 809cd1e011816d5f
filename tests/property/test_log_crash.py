"""Whatever a crash leaves of a log, it is read as what was committed, or refused; never as else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings, strategies as st

from tests.log_cases import (
    QUICK,
    RUN,
    flat,
    flip,
    groups_of,
    open_log,
    push,
    segments,
    snapshot_of,
    snapshots,
    update,
    write,
)
from thinwire.errors import LogError
from thinwire.server.log.log import Log
from thinwire.server.log.recovery import Recovery, recover
from thinwire.server.log.settings import LogSettings
from thinwire.wire.frame import Frame

GROUPS = groups_of(4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two segments with a snapshot between them, which covers the first group."""
    settings = LogSettings(fsync="off", segment_nbytes=500)
    with open_log(tmp_path / "log", settings) as log:
        write(log, GROUPS[:1])
        log.snapshot(snapshot_of(log, 1))
        write(log, GROUPS[1:])
    assert len(segments(tmp_path / "log")) == 2
    return tmp_path / "log"


def prefixes(groups: list[list[Frame]]) -> list[list[Frame]]:
    return [flat(groups[:count]) for count in range(len(groups) + 1)]


def test_every_cut_of_the_last_segment_leaves_whole_groups(folder: Path) -> None:
    last = segments(folder)[-1]
    for size in range(last.stat().st_size, 71, -1):  # the head was there before its name was
        os.truncate(last, size)
        found = recover(folder)
        frames = list(found.frames())
        assert frames in prefixes(GROUPS[1:])
        assert len(frames) == found.next_record - 3
        assert found.segments[-1].end == size or found.cut is not None
        whole = [one for one in prefixes(GROUPS) if len(one) <= found.next_record][-1]
        assert whole == flat(GROUPS)[: found.next_record]


def test_after_every_cut_the_log_goes_on(folder: Path, tmp_path: Path) -> None:
    data = segments(folder)[-1].read_bytes()
    for i, size in enumerate(range(72, len(data), 23)):
        copy = tmp_path / str(i)
        shutil.copytree(folder, copy)
        segments(copy)[-1].write_bytes(data[:size])
        log, before = Log.open(copy, QUICK, new_run=RUN)
        with log:
            expected = [*before.frames(), push(9)]
            write(log, [[push(9)]])
        assert list(recover(copy).frames()) == expected


def is_noticed(found: Recovery) -> bool:
    return found.cut is not None or found.damaged_snapshots != ()


@pytest.mark.parametrize("bit", [0, 7])
def test_every_flipped_bit_is_noticed(folder: Path, bit: int) -> None:
    for path in [*segments(folder), *snapshots(folder)]:
        for offset in range(path.stat().st_size):
            flip(path, offset, bit)
            check_that_it_is_noticed(folder, path)
            flip(path, offset, bit)
    assert not is_noticed(recover(folder))


def check_that_it_is_noticed(folder: Path, path: Path) -> None:
    """By an error that names the file; or by cutting whole groups, or taking an older snapshot."""
    try:
        found = recover(folder)
    except LogError as error:
        named = str(path) in str(error)
    else:
        named = is_noticed(found) and (
            path == segments(folder)[-1] or found.damaged_snapshots != ()
        )
        assert [*flat(GROUPS)[: found.first], *found.frames()] in prefixes(GROUPS)
    assert named


RECORD = st.one_of(
    st.builds(push, st.integers(0, 9), payload=st.binary(max_size=300)),
    st.builds(update, st.integers(1, 9), payload=st.binary(max_size=300)),
)
ACTION = st.one_of(
    st.lists(RECORD, min_size=1, max_size=4),  # a group
    st.sampled_from(["snapshot", "reopen", "crash"]),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(ACTION, max_size=12), st.integers(1, 1500), st.data())
def test_snapshot_and_tail_are_the_full_replay(
    actions: list[list[Frame] | str], segment_nbytes: int, data: st.DataObject
) -> None:
    """A server whose whole state is the list of frames it has seen restarts with that list."""
    options = LogSettings(fsync="off", segment_nbytes=segment_nbytes, keep_steps=3)
    with TemporaryDirectory() as folder:
        log, _ = Log.open(Path(folder), options, new_run=RUN)
        seen: list[Frame] = []
        for action in actions:
            if isinstance(action, list):
                write(log, [action])
                seen += action
            elif action == "snapshot":
                log.snapshot(snapshot_of(log, len(seen)))
            else:
                log.close()
                if action == "crash":
                    tear(Path(folder), data.draw(st.binary(min_size=1, max_size=100)))
                log, recovery = Log.open(Path(folder), options, new_run=RUN)
                start = recovery.snapshot.counters["count"] if recovery.snapshot else 0
                assert seen[:start] + list(recovery.frames()) == seen
            check_updates(log, seen)
        log.close()


def tear(folder: Path, tail: bytes) -> None:
    with segments(folder)[-1].open("ab") as file:
        file.write(tail)


def check_updates(log: Log, seen: list[Frame]) -> None:
    def version(frame: Frame) -> int:
        return int.from_bytes(frame.body[:8], "little")

    since = log.history.since
    wanted = [frame for frame in seen if frame.kind == 4 and version(frame) > since]
    assert list(log.updates(after=since)) == sorted(wanted, key=version)
