"""A disk that is full, for real: what was accepted stays, the rest is refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.file_limit import file_limit
from tests.log_cases import RUN, flat, open_log, push, recovered, write
from thinwire.errors import LogError
from thinwire.server.log.log import Log
from thinwire.server.log.recovery import recover
from thinwire.server.log.settings import LogSettings
from thinwire.server.log.snapshot import Snapshot
from thinwire.wire.frame import Frame, pack

GROUP = [push(1, payload=bytes(30_000)), push(2, payload=bytes(50_000))]


def fill(log: Log) -> tuple[list[Frame], str]:
    """Commit groups until it fails: those before that, and the error's sentence."""
    groups: list[list[Frame]] = []
    while True:
        try:
            write(log, [GROUP])
        except LogError as error:
            return flat(groups), str(error)
        groups.append(GROUP)


def check_that_it_stays_failed(log: Log, sentence: str) -> None:
    for action in (lambda: log.append(pack(push(1))), log.commit):
        with pytest.raises(LogError) as caught:
            action()
        assert str(caught.value) == sentence


@pytest.mark.parametrize("fsync", ["step", "off"])
@pytest.mark.parametrize("segment_nbytes", [1, 300_000, 1 << 30])
def test_a_full_disk_loses_nothing(tiny_disk: Path, fsync: str, segment_nbytes: int) -> None:
    settings = LogSettings(fsync=fsync, segment_nbytes=segment_nbytes)
    with open_log(tiny_disk, settings) as log:
        frames, sentence = fill(log)
        assert "No space left on device; make room on its disk" in sentence
        assert str(tiny_disk) in sentence
        assert len(frames) == log.next_record > 0
        check_that_it_stays_failed(log, sentence)
        assert not list(tiny_disk.glob("*.tmp"))
    left = recover(tiny_disk)
    assert left.cut is None
    assert list(left.frames()) == frames


def test_it_goes_on_when_there_is_room_again(tiny_disk: Path) -> None:
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(500_000))
    with open_log(tiny_disk) as log:
        frames, _ = fill(log)
    ballast.unlink()
    with open_log(tiny_disk) as log:
        write(log, [[push(3)]])
    assert recovered(tiny_disk) == [*frames, push(3)]


def test_a_snapshot_that_does_not_fit_leaves_the_log_alone(tiny_disk: Path) -> None:
    with open_log(tiny_disk) as log:
        write(log, [[push(1)]])
        large = Snapshot(RUN, 1, {"a": {"residual": torch.zeros(1 << 18)}})
        with pytest.raises(LogError, match=r"snapshot-.* could not be written: No space"):
            log.snapshot(large)
        assert not list(tiny_disk.glob("snapshot*"))
        write(log, [[push(2)]])
    assert recovered(tiny_disk) == [push(1), push(2)]


def test_a_file_limit_is_a_full_disk(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        with file_limit(200_000):
            frames, sentence = fill(log)
        assert "File too large; make room on its disk" in sentence
        check_that_it_stays_failed(log, sentence)
    left = recover(tmp_path)
    assert left.cut is None
    assert list(left.frames()) == frames == flat([GROUP] * 2)
