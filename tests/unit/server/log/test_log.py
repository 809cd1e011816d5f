"""A log gives back what was committed, in order, to one owner; and says where it cannot."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.log_cases import (
    QUICK,
    RUN,
    flat,
    flip,
    groups_of,
    make_log,
    open_log,
    push,
    recovered,
    segments,
    update,
    write,
)
from thinwire.errors import ConfigError, LogError, ProtocolError
from thinwire.server.log.log import Log
from thinwire.server.log.recovery import recover
from thinwire.server.log.settings import LogSettings
from thinwire.wire.frame import Frame, pack

SMALL = LogSettings(fsync="off", segment_nbytes=300)


@pytest.mark.parametrize("fsync", ["step", "off"])
def test_what_was_committed_is_there_again(tmp_path: Path, fsync: str) -> None:
    groups = groups_of(5)
    make_log(tmp_path / "new" / "log", groups, LogSettings(fsync=fsync))
    log, recovery = Log.open(tmp_path / "new" / "log", new_run=8)
    with log:
        assert list(recovery.frames()) == list(recovery.frames()) == flat(groups)
        assert (recovery.snapshot, recovery.first, recovery.cut, recovery.damaged_snapshots) == (
            *(None, 0, None),
            (),
        )
        assert (log.run, log.epoch, log.next_record) == (RUN, 2, 15)


def test_a_frame_may_come_in_any_parts(tmp_path: Path) -> None:
    header, body = pack(push(1))
    whole = bytearray(header + body)
    with open_log(tmp_path) as log:
        log.append((header, body))
        log.append([whole])
        log.append([memoryview(whole)[i : i + 1] for i in range(len(whole))])
        log.append([b"", header, b"", body])
        assert log.commit() == 4
    assert recovered(tmp_path) == [push(1)] * 4


def test_more_parts_than_one_call_of_the_system_takes(tmp_path: Path) -> None:
    frames = [push(step) for step in range(2000)]
    make_log(tmp_path, [frames])
    assert recovered(tmp_path) == frames


def test_what_was_not_committed_never_happened(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        write(log, groups_of(1))
        log.append(pack(push(2)))
        assert log.next_record == 3
    with pytest.raises(LogError, match="is closed"):
        log.append(pack(push(2)))
    assert recovered(tmp_path) == flat(groups_of(1))


def test_a_commit_of_nothing_writes_nothing(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        before = segments(tmp_path)[0].read_bytes()
        assert log.commit() == 0
        assert segments(tmp_path)[0].read_bytes() == before


@pytest.mark.parametrize("cut", [0, 39, 40, -1])
def test_only_whole_frames_are_taken(tmp_path: Path, cut: int) -> None:
    with open_log(tmp_path) as log:
        with pytest.raises(ProtocolError):
            log.append([b"".join(pack(push(1)))[:cut]])
        with pytest.raises(ProtocolError, match="kind 130"):
            log.append(pack(Frame(130, RUN, 1, 0, 0, memoryview(bytes(28)))))
        write(log, groups_of(1))
    assert recovered(tmp_path) == flat(groups_of(1))


def test_every_opening_has_an_epoch_and_empty_segments_do_not_pile_up(tmp_path: Path) -> None:
    for epoch in range(1, 5):
        with open_log(tmp_path) as log:
            assert log.epoch == epoch
    assert len(segments(tmp_path)) == 1
    make_log(tmp_path, groups_of(1))
    make_log(tmp_path, groups_of(1))
    assert len(segments(tmp_path)) == 2
    assert recovered(tmp_path) == flat(groups_of(1)) * 2


def test_a_second_server_is_told_who_has_the_folder(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(LogError, match=r"in use by another server \(process \d+\)"):
        open_log(tmp_path)
    log.close()
    open_log(tmp_path).close()


def test_segments_are_bounded_and_their_order_is_kept(tmp_path: Path) -> None:
    groups = groups_of(10)
    make_log(tmp_path, groups, SMALL)
    assert len(segments(tmp_path)) > 3
    assert recovered(tmp_path) == flat(groups)


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    make_log(tmp_path, groups_of(10), SMALL)
    segments(tmp_path)[1].unlink()
    with pytest.raises(LogError, match="segments 1 to 1 are missing"):
        recovered(tmp_path)


def test_a_missing_beginning_is_noticed(tmp_path: Path) -> None:
    make_log(tmp_path, groups_of(10), SMALL)
    segments(tmp_path)[0].unlink()
    with pytest.raises(LogError, match="no snapshot, so that some are missing"):
        recovered(tmp_path)


def test_a_segment_of_another_log_is_noticed(tmp_path: Path) -> None:
    make_log(tmp_path / "a", groups_of(10), SMALL)
    make_log(tmp_path / "b", [[*group, push(1)] for group in groups_of(10)], SMALL)
    segments(tmp_path / "a")[1].write_bytes(segments(tmp_path / "b")[1].read_bytes())
    with pytest.raises(LogError, match="is it of another log"):
        recovered(tmp_path / "a")


def test_a_renamed_segment_is_noticed(tmp_path: Path) -> None:
    make_log(tmp_path, groups_of(1))
    segments(tmp_path)[0].rename(tmp_path / f"segment-{1:012}")
    with pytest.raises(LogError, match="is segment 0, its name says 1"):
        recovered(tmp_path)


def test_damage_in_the_middle_says_where_and_changes_nothing(tmp_path: Path) -> None:
    make_log(tmp_path, groups_of(3))
    path = segments(tmp_path)[0]
    flip(path, 150)
    damaged = path.read_bytes()
    with pytest.raises(LogError, match=rf"{path}, byte 150: frame: .*accepted once.*Restore"):
        recovered(tmp_path)
    assert path.read_bytes() == damaged


def test_a_shorter_segment_before_the_last_is_damage(tmp_path: Path) -> None:
    make_log(tmp_path, groups_of(10), SMALL)
    path = segments(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LogError, match=f"{path}, byte"):
        recovered(tmp_path)


def test_a_torn_tail_is_cut_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_log(tmp_path, groups_of(3))
    path = segments(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        log, recovery = Log.open(tmp_path, QUICK, new_run=RUN)
    with log:
        assert recovery.cut is not None
        assert recovery.cut.path == path
        assert list(recovery.frames()) == flat(groups_of(2))
        write(log, groups_of(1))
    assert "never committed and are cut" in caplog.text
    assert recovered(tmp_path) == flat([*groups_of(2), *groups_of(1)])


def test_a_commit_hidden_in_a_payload_fools_nobody(tmp_path: Path) -> None:
    """A torn tail stays one, though a worker sent bytes that look like a later commit."""
    make_log(tmp_path / "a", groups_of(4))
    hidden = segments(tmp_path / "a")[0].read_bytes()
    make_log(tmp_path / "b", [*groups_of(1), [push(2, payload=hidden)]])
    path = segments(tmp_path / "b")[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert recovered(tmp_path / "b") == flat(groups_of(1))


def test_the_end_of_a_group_may_reach_the_disk_before_its_middle(tmp_path: Path) -> None:
    make_log(tmp_path, groups_of(3))
    path = segments(tmp_path)[0]
    flip(path, path.stat().st_size - 200)
    assert recovered(tmp_path) == flat(groups_of(2))


def test_updates_come_by_version_and_only_after_their_commit(tmp_path: Path) -> None:
    frames = [update(1), update(2, piece=1), push(2), update(1, piece=1), update(3), update(2)]
    with open_log(tmp_path, LogSettings(fsync="off", segment_nbytes=1)) as log:
        write(log, [[frame] for frame in frames])
        log.append(pack(update(4)))
        assert list(log.updates(after=0)) == [frames[i] for i in (0, 3, 1, 5, 4)]
        assert list(log.updates(after=1)) == [frames[i] for i in (1, 5, 4)]
        assert list(log.updates(after=3)) == []
        before = log.updates(after=2)
        log.commit()
        assert list(log.updates(after=3)) == [update(4)]
        assert list(before) == [update(3)]
    with open_log(tmp_path) as log:
        assert list(log.updates(after=1)) == [*(frames[i] for i in (1, 5, 4)), update(4)]
        assert log.history.version == 4


def test_an_interrupted_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between two calls of the system: the group is gone, and the log goes on."""

    def interrupt(fd: int) -> None:
        raise KeyboardInterrupt

    with open_log(tmp_path, LogSettings(fsync="step")) as log:
        write(log, groups_of(1))
        with monkeypatch.context() as patch:
            patch.setattr("os.fdatasync", interrupt)
            log.append(pack(push(2, payload=bytes(1000))))
            with pytest.raises(KeyboardInterrupt):
                log.commit()
        write(log, groups_of(1))
    assert recover(tmp_path).cut is None
    assert recovered(tmp_path) == flat(groups_of(1)) * 2


@pytest.mark.parametrize(
    "wrong",
    [{"fsync": "yes"}, {"segment_nbytes": 0}, {"keep_steps": -1}, {"keep_nbytes": -1}],
    ids=str,
)
def test_impossible_settings_are_refused(wrong: dict[str, str | int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LogSettings(**wrong)  # type: ignore[arg-type]  # wrong on purpose
