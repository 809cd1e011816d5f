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
    make_log,
    open_log,
    push,
    segments,
    snapshot_of,
    snapshots,
    write,
)
from thinwire.cli.main import main
from thinwire.server.log.settings import LogSettings
from thinwire.server.log.snapshot import Snapshot
from thinwire.wire.frame import HEADER_NBYTES, Frame, pack
from thinwire.wire.messages import Describe, Described, Leave, Reason, encode


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


def test_a_folder_shows_who_pushed_and_what_is_kept(folder: Path) -> None:
    lines = inspect(folder).stdout.splitlines()
    assert lines[0].startswith(f"{folder}: log, run {RUN}, ")
    assert lines[1] == (
        "The log does not describe the model: no worker has joined, or that record is deleted."
    )
    cells = [line.split() for line in lines]
    pushes = sum(push(step).body.nbytes + HEADER_NBYTES for step in (1, 2, 1, 2))
    assert ["0", "4", str(pushes), str(pushes // 4), "2", "2", "0.1"] in cells
    assert any(row[:2] == ["1", "4"] for row in cells)
    kept = "Updates of versions 1-2 are kept: a worker or a checkpoint of version 0 or later"
    assert any(line.startswith(kept) for line in lines)


def test_a_folder_shows_what_was_trained(tmp_path: Path) -> None:
    tensors = (Described("fc.weight", (3, 4)), Described("fc.bias\x1b[2J", (3,)))
    describe = Describe(1, 2, "Recipe(push=\x1b[2J)", tensors)
    frame = encode(describe, run=RUN, epoch=1, worker=0, step=0)
    make_log(tmp_path / "log", [[frame]])
    result = inspect(tmp_path / "log", "--json", tmp_path / "out.json")
    lines = result.stdout.splitlines()
    assert lines[1] == "Trained: server 1 of 2; 2 tensors, 15 elements"
    assert lines[2] == r"Recipe:  'Recipe(push=\x1b[2J)'"
    assert "No updates are kept." in lines
    (file,) = json.loads((tmp_path / "out.json").read_text())["files"]
    assert file["frames"][1]["description"]["tensors"][0]["name"] == "fc.weight"


def test_a_description_is_found_in_a_snapshot(tmp_path: Path) -> None:
    frame = encode(Describe(0, 1, "dense", ()), run=RUN, epoch=1, worker=0, step=0)
    with open_log(tmp_path / "log") as log:
        log.snapshot(Snapshot(log.run, log.epoch, pending=(frame,)))
    assert "Trained: server 0 of 1; 0 tensors, 0 elements" in inspect(tmp_path / "log").stdout


def test_many_files_are_shortened(folder: Path) -> None:
    count = len(segments(folder)) + len(snapshots(folder))
    assert f"Files not shown: {count - 2};" in inspect(folder, "--rows", "2").stdout


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
    assert "a crash may have left" in result.stdout


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
