"""Files of ``--json``: a refused run leaves the old one, and no command finds out at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from thinwire.cli.files import write_json
from thinwire.cli.main import main

OLD = '{"results": "of last week"}\n'
REFUSED = [
    "train gpt --scale smoke --recipe dcg --out run",
    "replay --checkpoint empty --log-dir . --optimizer torch.optim.SGD --out out.pt",
    "inspect missing",
    "demo --steps 0",
    "bench kernels --numel 999",
    "bench links --steps 0",
    "bench server --steps 0",
]


@pytest.mark.parametrize("command", REFUSED)
def test_a_refused_command_leaves_what_was_there(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    Path("old.json").write_text(OLD)
    outcome = CliRunner().invoke(main, [*command.split(), "--json", "old.json"])
    assert outcome.exit_code in (1, 2), outcome.output
    assert Path("old.json").read_text() == OLD
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "old.json"}


@pytest.mark.parametrize("command", REFUSED)
@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("none/out.json", "'--json': none/out.json: there is no folder "),
        ("/proc/out.json", "'--json': /proc/out.json: no file can be made in /proc: "),
        (".", "'--json': File '.' is a directory."),
    ],
)
def test_a_file_that_cannot_be_written_is_one_sentence(
    command: str, file: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    name, *rest = command.split()
    place = [name, rest.pop(0)] if name == "bench" else [name]
    outcome = CliRunner().invoke(main, [*place, "--json", file, *rest])  # the first to be looked at
    assert outcome.exit_code == 2
    assert sentence in outcome.stderr


def test_a_dash_is_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    write_json(Path("-"), {"a": 1})
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(OLD)
    (tmp_path / "link").symlink_to("old.json")
    write_json(tmp_path / "link", 1)
    write_json(Path("/dev/null"), 1)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "old.json").read_text() == "1\n"
    assert Path("/dev/null").is_char_device()


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(OLD)
    (tmp_path / "old.json").chmod(0o600)
    write_json(tmp_path / "old.json", 1)
    assert (tmp_path / "old.json").stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_told_in_json_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(OLD)
    with pytest.raises(TypeError):
        write_json(tmp_path / "old.json", object())
    assert (tmp_path / "old.json").read_text() == OLD
