"""``thinwire keys`` makes keys that servers and workers can use, and never shows a private one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from thinwire.cli.main import main
from thinwire.keys.lists import Grant, read_allowed
from thinwire.keys.settings import ServerKeys, WorkerKeys


def keys(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["keys", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("server", "worker-0", "worker-1"):
        assert keys("new", name, "--folder", tmp_path).exit_code == 0
    return tmp_path


def private_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("---")]


def refused(result: Result) -> str:
    """The one sentence."""
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    return result.stderr


def test_a_key_is_two_files_and_a_line_of_what_comes_next(tmp_path: Path) -> None:
    result = keys("new", "worker-0", "--folder", tmp_path / "made")
    key, certificate = tmp_path / "made" / "worker-0.key", tmp_path / "made" / "worker-0.crt"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert list(read_allowed(certificate).values()) == [Grant("worker-0")]
    assert result.stdout.splitlines()[-1].startswith("Next: copy worker-0.crt to ")
    assert private_lines(key)[0] not in result.output


def test_what_it_makes_is_what_servers_and_workers_take(folder: Path) -> None:
    assert keys("allow", folder / "list", folder / "worker-0.crt").exit_code == 0
    ServerKeys(folder / "server.key", folder / "list")
    WorkerKeys(folder / "worker-0.key", folder / "server.crt")


def test_nothing_is_overwritten(folder: Path) -> None:
    before = (folder / "server.key").read_text()
    assert "exists already" in refused(keys("new", "server", "--folder", folder))
    assert (folder / "server.key").read_text() == before


@pytest.mark.parametrize("name", ["", "a b", "../a", ".a"])
def test_a_name_is_a_word(name: str, tmp_path: Path) -> None:
    assert "expected a word" in refused(keys("new", name, "--folder", tmp_path))


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = refused(keys("new", "server", "--folder", tmp_path / "file" / "below"))
    assert "no keys could be written here" in text


@pytest.mark.parametrize("suffix", ["key", "crt"])
def test_the_fingerprint_is_shown_for_either_file(folder: Path, suffix: str) -> None:
    [fingerprint] = read_allowed(folder / "server.crt")
    result = keys("show", folder / f"server.{suffix}")
    assert result.stdout == f"{fingerprint} server\n"


def test_a_folder_of_certificates_is_shown(folder: Path) -> None:
    lines = keys("show", folder).stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["server", "worker-0", "worker-1"]


@pytest.mark.parametrize("text", ["{0}", "secret {0}", "\x00{0}", "sha256:{0}", "-----BEGIN {0}"])
def test_a_private_key_in_the_wrong_place_is_not_repeated(folder: Path, text: str) -> None:
    private, path = private_lines(folder / "server.key")[0], folder / "odd.crt"
    path.write_text(text.format(private))
    for result in (keys("show", path), keys("allow", folder / "list", path)):
        assert result.exit_code == 1
        assert private not in result.output


def test_a_private_key_is_not_allowed(folder: Path) -> None:
    text = refused(keys("allow", folder / "list", folder / "worker-0.key"))
    assert "holds a private key, which never leaves its machine" in text
    assert not (folder / "list").exists()


def test_a_private_key_is_not_taken_for_a_list(folder: Path) -> None:
    before = (folder / "server.key").read_text()
    refused(keys("allow", folder / "server.key", folder / "worker-0.crt"))
    assert (folder / "server.key").read_text() == before


@pytest.mark.parametrize(
    "text", [f"public {'ab' * 32}\nsecret {'cd' * 32}\n", f"{'ab' * 32} worker-0\n"]
)
def test_keys_of_an_older_kind_are_refused_with_what_to_run(folder: Path, text: str) -> None:
    (folder / "old").write_text(text)
    for result in (keys("show", folder / "old"), keys("allow", folder / "list", folder / "old")):
        assert "make new ones with 'thinwire keys new NAME'" in refused(result)
        assert "cd" * 32 not in result.output


def test_bytes_are_refused(folder: Path) -> None:
    (folder / "bytes").write_bytes(b"\xff\xfe")
    for result in (
        keys("show", folder / "bytes"),
        keys("allow", folder / "list", folder / "bytes"),
        keys("allow", folder / "bytes", folder / "worker-0.crt"),
    ):
        assert "is not text, expected a key or certificates" in refused(result)
    assert (folder / "bytes").read_bytes() == b"\xff\xfe"


def test_a_list_with_an_impossible_name_is_one_sentence(folder: Path) -> None:
    text = refused(keys("allow", folder / ("x" * 300), folder / "worker-0.crt"))
    assert "cannot be read: File name too long" in text


def test_a_list_is_made_and_grows(folder: Path) -> None:
    allowed = folder / "workers.allow"
    first = keys("allow", allowed, folder / "worker-0.crt")
    assert first.stdout.startswith(f"Keys added to {allowed}: 1; it lists 1 now.")
    allowed.write_text(allowed.read_text().rstrip("\n"))  # as editors may leave it
    both = [folder / "worker-0.crt", folder / "worker-1.crt"]
    second = keys("allow", allowed, *both, *both)
    assert second.stdout.startswith(f"Keys added to {allowed}: 1; it lists 2 now.")
    assert read_allowed(allowed) == {**read_allowed(both[0]), **read_allowed(both[1])}
    assert keys("show", allowed).stdout == allowed.read_text()


def test_a_key_may_be_for_some_ranks_alone(folder: Path) -> None:
    allowed = folder / "workers.allow"
    assert keys("allow", allowed, folder / "worker-0.crt", "--ranks", "0,2-3").exit_code == 0
    assert list(read_allowed(allowed).values()) == [Grant("worker-0", frozenset({0, 2, 3}))]
    assert keys("show", allowed).stdout.endswith(" worker-0 ranks=0,2,3\n")
    text = refused(keys("allow", allowed, folder / "worker-1.crt", "--ranks", "1-"))
    assert "--ranks: ranks '1-', expected numbers and ranges such as 0,2-3" in text
