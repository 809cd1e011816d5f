"""``thinwire keys`` makes keys that servers and workers can use, and never shows a secret."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from thinwire.cli.main import main
from thinwire.transport.keys import load_keys, load_public_keys


def keys(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["keys", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("server", "worker-0", "worker-1"):
        assert keys("new", name, "--folder", tmp_path).exit_code == 0
    return tmp_path


def secret_of(path: Path) -> str:
    return load_keys(path).secret.hex()


def refused(result: Result) -> str:
    """The one sentence."""
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    return result.stderr


def test_a_pair_is_two_files_and_a_line_of_what_comes_next(tmp_path: Path) -> None:
    result = keys("new", "worker-0", "--folder", tmp_path / "made")
    secret, public = tmp_path / "made" / "worker-0.secret", tmp_path / "made" / "worker-0.public"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert load_public_keys([public]) == {load_keys(secret).public}
    assert result.stdout.splitlines()[-1].startswith("Next: copy worker-0.public to ")
    assert secret_of(secret) not in result.output


def test_nothing_is_overwritten(folder: Path) -> None:
    before = (folder / "server.secret").read_text()
    assert "exists already" in refused(keys("new", "server", "--folder", folder))
    assert (folder / "server.secret").read_text() == before


@pytest.mark.parametrize("name", ["", "a b", "../a"])
def test_a_name_is_a_word(name: str, tmp_path: Path) -> None:
    assert "expected a word" in refused(keys("new", name, "--folder", tmp_path))


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = refused(keys("new", "server", "--folder", tmp_path / "file" / "below"))
    assert "no keys could be written here" in text


@pytest.mark.parametrize("suffix", ["secret", "public"])
def test_the_public_key_of_either_file_is_shown(folder: Path, suffix: str) -> None:
    result = keys("show", folder / f"server.{suffix}")
    assert result.stdout == (folder / "server.public").read_text()
    assert secret_of(folder / "server.secret") not in result.output


def test_a_secret_file_is_known_by_its_text_too(folder: Path) -> None:
    secret = secret_of(folder / "server.secret")
    (folder / "server.secret").rename(folder / "server.key")
    result = keys("show", folder / "server.key")
    assert result.stdout.split()[1] == "server"
    assert secret not in result.output


def test_a_secret_that_others_can_read_is_refused(folder: Path) -> None:
    path = folder / "server.secret"
    secret = secret_of(path)
    path.chmod(0o644)
    result = keys("show", path)
    assert "others can read this secret" in refused(result)
    assert secret not in result.output


@pytest.mark.parametrize("text", ["secret {0}", "{0}{0}", "public {0}", "\x00{0}", "no-key {0}"])
def test_a_secret_in_the_wrong_place_is_not_repeated(folder: Path, text: str) -> None:
    secret, path = secret_of(folder / "server.secret"), folder / "odd.public"
    path.write_text(text.format(secret))
    for result in (keys("show", path), keys("allow", folder / "list", path)):
        assert result.exit_code == 1
        assert secret not in result.output


def test_a_second_key_on_a_line_is_not_repeated(folder: Path) -> None:
    public, secret = (folder / "server.public").read_text().split()[0], "ab" * 32
    (folder / "odd.public").write_text(f"{public} {secret}\n")
    assert keys("show", folder / "odd.public").stdout == f"{public}\n"


@pytest.mark.parametrize("name", ["bytes", "bytes.secret", "bytes.public"])
def test_bytes_are_refused(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\xff\xfe")
    (folder / name).chmod(0o600)
    assert "is not text, expected a file of keys" in refused(keys("show", folder / name))
    if not name.endswith(".secret"):
        text = refused(keys("allow", folder / "list", folder / name))
        assert "is not text, expected a file of keys" in text


def test_a_list_of_bytes_is_not_added_to(folder: Path) -> None:
    (folder / "list").write_bytes(b"\xff\xfe")
    text = refused(keys("allow", folder / "list", folder / "worker-0.public"))
    assert "is not text, expected a file of keys" in text
    assert (folder / "list").read_bytes() == b"\xff\xfe"


def test_a_list_with_an_impossible_name_is_one_sentence(folder: Path) -> None:
    text = refused(keys("allow", folder / ("x" * 300), folder / "worker-0.public"))
    assert "cannot be read: File name too long" in text


def test_a_list_is_made_and_grows(folder: Path) -> None:
    allowed = folder / "workers.allow"
    first = keys("allow", allowed, folder / "worker-0.public")
    assert first.stdout.startswith(f"Keys added to {allowed}: 1; it lists 1 now.")
    allowed.write_text(allowed.read_text().rstrip("\n"))  # as editors may leave it
    both = [folder / "worker-0.public", folder / "worker-1.public"]
    second = keys("allow", allowed, *both, *both)
    assert second.stdout.startswith(f"Keys added to {allowed}: 1; it lists 2 now.")
    assert load_public_keys([allowed]) == load_public_keys(both)
    assert keys("show", allowed).stdout == allowed.read_text()


def test_a_secret_file_is_not_allowed(folder: Path) -> None:
    text = refused(keys("allow", folder / "list", folder / "worker-0.secret"))
    assert f"give {folder / 'worker-0.public'}" in text
    assert not (folder / "list").exists()


def test_a_secret_file_is_not_taken_for_a_list(folder: Path) -> None:
    before = (folder / "server.secret").read_text()
    refused(keys("allow", folder / "server.secret", folder / "worker-0.public"))
    assert (folder / "server.secret").read_text() == before
