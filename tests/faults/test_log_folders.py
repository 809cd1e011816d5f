"""A folder that cannot be looked into is not an empty one, and no file in it is ever replaced."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
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
    recovered,
    segments,
    snapshot_of,
    snapshots,
    write,
)
from tests.server.processes import Process
from thinwire.errors import LogError
from thinwire.replay.kept_log import read_log
from thinwire.server.log.folder import read_folder
from thinwire.server.log.log import Log
from thinwire.server.log.settings import LogSettings

UNPRIVILEGED = 65534


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that any user can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        (folder / "log").chmod(0o700)
        shutil.rmtree(folder)


def give_away(folder: Path) -> None:
    """To the user that ``refusals_of`` is."""
    if os.geteuid() == 0:
        for path in (folder, *folder.iterdir()):
            os.chown(path, UNPRIVILEGED, UNPRIVILEGED)


def refusals_of(folder: Path) -> list[str]:
    """What an ordinary user is told: to root no folder is closed."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(UNPRIVILEGED)
        os.setuid(UNPRIVILEGED)
    return [refusal_of(use, folder) for use in (open_log, read_log, read_folder)]


def refusal_of(use: Callable[[Path], object], folder: Path) -> str:
    try:
        return f"{use(folder)} was not refused"
    except LogError as error:
        return str(error)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("mode", [0o300, 0o100])
def test_a_folder_that_cannot_be_listed_is_refused_untouched(reachable: Path, mode: int) -> None:
    folder = reachable / "log"
    make_log(folder, groups_of(3))
    before = contents(folder)
    give_away(folder)
    folder.chmod(mode)
    with Process(refusals_of, folder) as user:
        refusals = user.result()
    folder.chmod(0o700)
    assert contents(folder) == before
    assert recovered(folder) == flat(groups_of(3))
    for sentence in refusals:
        assert f"{folder} could not be listed: Permission denied; let this user read" in sentence


def test_a_file_in_the_place_of_the_next_segment_is_not_replaced(tmp_path: Path) -> None:
    with open_log(tmp_path, LogSettings(fsync="off", segment_nbytes=1)) as log:
        write(log, groups_of(1))
        other = tmp_path / f"segment-{1:012}"
        other.write_bytes(b"of somebody else")
        with pytest.raises(LogError, match=rf"{other} is there already.*use another folder"):
            write(log, groups_of(1))
    assert other.read_bytes() == b"of somebody else"
    other.unlink()
    assert recovered(tmp_path) == flat(groups_of(1))


def test_names_that_no_log_writes_hide_no_segment(tmp_path: Path) -> None:
    make_log(tmp_path / "empty", [])
    make_log(tmp_path / "log", groups_of(2))
    for digits in range(1, 12):
        shutil.copy(segments(tmp_path / "empty")[0], tmp_path / "log" / f"segment-{0:0{digits}}")
    before = (tmp_path / "log" / f"segment-{0:012}").read_bytes()
    assert recovered(tmp_path / "log") == flat(groups_of(2))
    assert (tmp_path / "log" / f"segment-{0:012}").read_bytes() == before


def test_a_snapshot_without_any_segment_is_no_empty_folder(tmp_path: Path) -> None:
    """Also if it is damaged: there was a log once, and a new one would take its place."""
    with open_log(tmp_path) as log:
        write(log, groups_of(2))
        log.snapshot(snapshot_of(log, 1))
    segments(tmp_path)[0].unlink()
    flip(snapshots(tmp_path)[0], 50)
    before = contents(tmp_path)
    with pytest.raises(LogError, match="so that some are missing"):
        Log.open(tmp_path, QUICK, new_run=RUN)
    after = contents(tmp_path)
    del before["lock"], after["lock"]
    assert after == before


def test_a_folder_called_like_a_temporary_file_is_named(tmp_path: Path) -> None:
    make_log(tmp_path, groups_of(1))
    (tmp_path / "x.tmp").mkdir()
    with pytest.raises(LogError, match=r"x\.tmp could not be deleted: Is a directory; move it"):
        open_log(tmp_path)
    (tmp_path / "x.tmp").rmdir()
    assert recovered(tmp_path) == flat(groups_of(1))
