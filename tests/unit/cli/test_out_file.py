"""Files that commands write: whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.file_limit import file_limit
from thinwire.cli.files import write_text
from thinwire.cli.main import main
from thinwire.errors import ThinwireError


def test_folders_that_are_missing_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_text(path, "± 1")
    assert path.read_text(encoding="utf-8") == "± 1"


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ThinwireError, match=r"page\.html cannot be written: "):
        write_text(tmp_path / "file" / "page.html", "")


@pytest.mark.parametrize("old", [None, "of last week"])
def test_a_full_disk_leaves_what_was_there(old: str | None, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    if old is not None:
        path.write_text(old)
    with file_limit(100), pytest.raises(ThinwireError, match="File too large"):
        write_text(path, 200 * "x")
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == (
        {} if old is None else {path.name: old}
    )


def test_a_report_that_does_not_fit_leaves_no_empty_one(tmp_path: Path) -> None:
    arguments = ["reproduce", "dgc", "--scale", "smoke", "--only", "*/dense", "--out"]
    runner = CliRunner()
    assert runner.invoke(main, [*arguments, str(tmp_path)]).exit_code == 0
    (tmp_path / "report.html").unlink()
    with file_limit(1_000):
        outcome = runner.invoke(main, [*arguments, str(tmp_path)])
    assert outcome.exit_code == 1
    assert f"Error: {tmp_path / 'report.html'} cannot be written: File too" in outcome.stderr
    assert not [one for one in tmp_path.iterdir() if one.is_file()]
