"""``thinwire inspect`` shows every kind of file, and damage with its place and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.golden.make_messages import FOLDER as MESSAGES
from tests.log_cases import (
    RUN,
    flip,
    groups_of,
    open_log,
    segments,
    snapshot_of,
    snapshots,
    write,
)
from thinwire.cli.main import main
from thinwire.server.retention import LogSettings
from thinwire.wire.frame import Frame, pack
from thinwire.wire.messages import Leave, Reason, encode


def inspect(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_log(tmp_path / "log", LogSettings(fsync="off", segment_nbytes=500)) as log:
        write(log, groups_of(2))
        log.snapshot(snapshot_of(log, 1))
        write(log, groups_of(2))
    return tmp_path / "log"


@pytest.mark.parametrize("path", sorted(MESSAGES.iterdir()), ids=lambda path: path.stem)
def test_every_message_is_shown(path: Path) -> None:
    result = inspect(path)
    assert result.exit_code == 0
    kind = path.stem.split("-")[0] if path.stem != "catch-up" else "catchup"
    assert kind in result.stdout.splitlines()[2]


def test_a_folder_shows_its_files_and_where_a_server_would_start(folder: Path) -> None:
    result = inspect(folder)
    assert result.exit_code == 0
    for path in [*segments(folder), *snapshots(folder)]:
        assert path.name in result.stdout
    assert "start from the snapshot of record 6 and replay 6 records" in result.stdout


def test_damage_is_shown_with_its_place(folder: Path, tmp_path: Path) -> None:
    flip(segments(folder)[0], 160)
    for target in (folder, segments(folder)[0]):
        result = inspect(target, "--json", tmp_path / "out.json")
        assert result.exit_code == 1
        assert f"Damaged: {segments(folder)[0]}, byte 150: frame: checksum" in result.stdout
        files = json.loads((tmp_path / "out.json").read_text())["files"]
        assert files[0]["damage"]["offset"] == 150
        assert files[0]["damage"]["torn_tail"] is False
    assert "No server can start" in inspect(folder).stdout


def test_a_torn_tail_is_not_called_damage_of_the_middle(folder: Path) -> None:
    path = segments(folder)[-1]
    path.write_bytes(path.read_bytes()[:-1])
    result = inspect(path)
    assert result.exit_code == 1
    assert "may be what a crash left" in result.stdout


def test_a_damaged_snapshot_is_shown(folder: Path) -> None:
    path = snapshots(folder)[0]
    path.write_bytes(path.read_bytes() + b"".join(pack(groups_of(1)[0][0])))
    result = inspect(path)
    assert result.exit_code == 1
    assert "bytes too many" in result.stdout


def test_long_files_are_shortened_but_not_in_json(folder: Path, tmp_path: Path) -> None:
    result = inspect(segments(folder)[0], "--rows", "3", "--json", tmp_path / "out.json")
    assert "Frames not shown: 6" in result.stdout
    assert len(json.loads((tmp_path / "out.json").read_text())["files"][0]["frames"]) == 9


def test_a_frame_that_says_nothing_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    path.write_bytes(b"".join(pack(Frame(3, RUN, 1, 0, 0, memoryview(b"abc")))))
    result = inspect(path)
    assert result.exit_code == 1
    assert "push: 3 bytes are left" in result.stdout


def test_no_text_of_a_file_moves_the_cursor(tmp_path: Path) -> None:
    leave = Leave(Reason.DONE, "\x1b[2J[red]bye")
    path = tmp_path / "frames"
    path.write_bytes(b"".join(pack(encode(leave, run=RUN, epoch=1, worker=0, step=0))))
    result = inspect(path)
    assert "\x1b" not in result.stdout
    assert "[2J[red]bye" in result.stdout


def test_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("This is no frame, but it is long enough to be one.")
    assert "expected b'TWIR'" in inspect(tmp_path / "text").stdout
    result = inspect(tmp_path)
    assert result.exit_code == 1
    assert "is it the folder of a log?" in result.stderr
