"""Snapshots come back bit for bit, whole or not at all, and let old segments go."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.log_cases import (
    QUICK,
    RUN,
    flat,
    flip,
    groups_of,
    open_log,
    push,
    recovered,
    segments,
    snapshot_of,
    snapshots,
    write,
)
from thinwire.errors import ConfigError, LocalProtocolError, LogError
from thinwire.server.log.log import Log
from thinwire.server.log.settings import LogSettings
from thinwire.server.log.snapshot import Snapshot

NAN = torch.tensor([1.0, -0.0, float("nan"), float("-inf"), 1e-45])
FULL = Snapshot(
    RUN,
    1,
    buffers={
        "fc.weight[0:5]": {"residual": NAN, "learning_rate": torch.tensor(0.1).double()},
        "naïve": {"residual": torch.empty(0), "matrix": torch.arange(6.0).reshape(2, 3).T},
        "": {},
    },
    versions={"fc.weight[0:5]": 3, "naïve": 2**64 - 1},
    steps={5: 12, 0: 13},
    counters={"refused": 4},
    pending=(push(4), push(5, worker=1)),
)


def same(a: Snapshot, b: Snapshot) -> bool:
    def plain(one: Snapshot) -> tuple[object, ...]:
        tensors = {
            (piece, name): (x.dtype, tuple(x.shape), x.numpy().tobytes())
            for piece, buffers in one.buffers.items()
            for name, x in buffers.items()
        }
        tables = [list(t.items()) for t in (one.versions, one.steps, one.counters)]
        return (one.run, one.epoch, tensors, tables, one.pending)

    return plain(a) == plain(b)


def test_all_of_it_comes_back_bit_for_bit(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        write(log, groups_of(2))
        log.snapshot(FULL)
        write(log, groups_of(1))
    log, recovery = Log.open(tmp_path, QUICK, new_run=RUN)
    with log:
        assert recovery.snapshot is not None
        assert same(recovery.snapshot, FULL)
        assert recovery.first == 6
        assert list(recovery.frames()) == flat(groups_of(1))


def test_a_snapshot_commits_what_was_appended(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        write(log, groups_of(1))
        log.snapshot(snapshot_of(log, 1))
        log.snapshot(snapshot_of(log, 2))
    log, recovery = Log.open(tmp_path, QUICK, new_run=RUN)
    with log:
        assert recovery.snapshot is not None
        assert recovery.snapshot.counters == {"count": 2}
        assert list(recovery.frames()) == []


def test_wrong_ones_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    whole = {"a": {"b": torch.arange(3)}}
    with open_log(tmp_path) as log:
        with pytest.raises(ConfigError, match=r"b of 'a' is torch.int64"):
            log.snapshot(Snapshot(RUN, 1, whole))
        with pytest.raises(LocalProtocolError, match="epoch 2"):
            log.snapshot(Snapshot(RUN, 2))
        with pytest.raises(LocalProtocolError, match="versions of 'a'"):
            Snapshot(RUN, 1, versions={"a": -1})
        write(log, groups_of(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", segments(tmp_path)[0].name]


def test_the_older_one_does_if_the_newest_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = LogSettings(fsync="off", segment_nbytes=1, keep_steps=0)
    with open_log(tmp_path, settings) as log:
        for count in range(4):
            write(log, groups_of(3))
            log.snapshot(snapshot_of(log, count))
    flip(snapshots(tmp_path)[-1], 50)
    log, recovery = Log.open(tmp_path, QUICK, new_run=RUN)
    with log:
        assert recovery.snapshot is not None
        assert recovery.snapshot.counters == {"count": 2}
        assert list(recovery.frames()) == flat(groups_of(3))
        assert "checksum" in recovery.damaged_snapshots[0]
    assert "checksum" in caplog.text
    assert [path.suffix for path in snapshots(tmp_path)] == ["", ".damaged"]
    flip(snapshots(tmp_path)[0], 50)
    with pytest.raises(LogError, match=r"no snapshot, so that some are missing \(log: .*checksum"):
        recovered(tmp_path)


def test_a_log_that_ends_before_its_snapshot_has_lost_something(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        write(log, groups_of(2))
        log.snapshot(snapshot_of(log, 1))
    path = segments(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LogError, match="records 0 to 3 and a snapshot of record 6"):
        recovered(tmp_path)


def test_an_unfinished_snapshot_is_forgotten(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        write(log, groups_of(1))
        log.snapshot(snapshot_of(log, 1))
    half = snapshots(tmp_path)[0].read_bytes()[:-9]
    (tmp_path / f"snapshot-{9:012}.tmp").write_bytes(half)
    assert recovered(tmp_path) == []
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    ("keep", "since"),
    [({}, 0), ({"keep_steps": 5}, 35), ({"keep_nbytes": 2000}, 36), ({"keep_steps": 1000}, 0)],
    ids=str,
)
def test_old_segments_go_once_two_snapshots_cover_them(
    tmp_path: Path, keep: dict[str, int], since: int
) -> None:
    settings = LogSettings(fsync="off", segment_nbytes=1, **keep)
    groups = groups_of(40)
    with open_log(tmp_path, settings) as log:
        write(log, groups[:39])
        log.snapshot(snapshot_of(log, 1))
        assert (log.history.since, len(segments(tmp_path))) == (0, 39)
        write(log, groups[39:])
        log.snapshot(snapshot_of(log, 2))
        assert log.history.since == since
    with open_log(tmp_path, settings) as log:
        assert log.history.since == since
        assert list(log.updates(after=since)) == [group[2] for group in groups[since:]]
        if since:
            with pytest.raises(LogError, match=f"only those after {since}"):
                log.updates(after=since - 1)
    assert len(snapshots(tmp_path)) == 2


def test_damage_that_a_snapshot_covers_can_be_moved_away(tmp_path: Path) -> None:
    with open_log(tmp_path, LogSettings(fsync="off", segment_nbytes=1)) as log:
        write(log, groups_of(3))
        log.snapshot(snapshot_of(log, 1))
        write(log, groups_of(1))
    flip(segments(tmp_path)[1], 100)
    with pytest.raises(LogError, match="move it and all segments before it away"):
        recovered(tmp_path)
    for path in segments(tmp_path)[:2]:
        path.unlink()
    assert recovered(tmp_path) == flat(groups_of(1))
