"""keys/: files, their modes, and that private keys stay private."""

from __future__ import annotations

import shutil
import ssl
import stat
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from thinwire.errors import ConfigError
from thinwire.keys import make
from thinwire.keys.lists import Grant, fingerprint, parse_ranks, read_allowed
from thinwire.keys.make import new_keys
from thinwire.keys.settings import ServerKeys, WorkerKeys, certificate_of


def print_of(certificate: Path) -> str:
    return fingerprint(ssl.PEM_cert_to_DER_cert(certificate.read_text()))


@pytest.mark.parametrize("tool", ["cryptography", "openssl"])
def test_keys_are_made_and_taken(
    tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tool == "openssl":
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl")
        monkeypatch.setattr(make, "find_spec", lambda name: None)
    key, certificate = new_keys(tmp_path, "worker-1")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "PRIVATE" not in certificate.read_text()
    WorkerKeys(key, certificate)
    ServerKeys(key, certificate)


def test_without_a_tool_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="install the package cryptography, or openssl"):
        new_keys(tmp_path, "a")
    assert not list(tmp_path.iterdir())


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    key, certificate = new_keys(tmp_path, "a")
    before = key.read_text()
    with pytest.raises(ConfigError, match="exists already"):
        new_keys(tmp_path, "a")
    certificate.unlink()
    with pytest.raises(ConfigError, match="exists already"):
        new_keys(tmp_path, "a")
    assert key.read_text() == before


@pytest.mark.parametrize("name", ["", "a/b", "a b", "../a", "a\n", "-a"])
def test_a_name_is_one_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="expected a word"):
        new_keys(tmp_path, name)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    key, certificate = new_keys(tmp_path, "a")
    key.chmod(mode)
    for take in (ServerKeys, WorkerKeys):
        with pytest.raises(ConfigError, match=f"its mode is {mode:04o}"):
            take(key, certificate)


def test_a_key_and_its_certificate_belong_together(tmp_path: Path) -> None:
    key, certificate = new_keys(tmp_path, "a")
    _, other = new_keys(tmp_path, "b")
    certificate.unlink()
    with pytest.raises(ConfigError, match=r"a\.crt: cannot be read: No such file"):
        WorkerKeys(key, other)
    certificate.write_text(other.read_text())
    with pytest.raises(ConfigError, match=r"a\.key and .*a\.crt cannot be used together"):
        WorkerKeys(key, other)
    certificate.write_text("")
    with pytest.raises(ConfigError, match="holds no certificate"):
        WorkerKeys(key, other)


def test_a_private_key_is_in_no_repr_and_no_error(tmp_path: Path) -> None:
    key, certificate = new_keys(tmp_path, "a")
    private = key.read_text().splitlines()[1]
    assert private not in repr(ServerKeys(key, certificate)) + repr(WorkerKeys(key, certificate))
    with pytest.raises(ConfigError, match="holds a private key") as caught:
        ServerKeys(key, key)  # the wrong file
    assert private not in str(caught.value)
    key.write_text(key.read_text().replace(private, private[:-4]))
    with pytest.raises(ConfigError) as caught:
        WorkerKeys(key, certificate)
    assert private[:8] not in "".join(traceback.format_exception(caught.value))


def test_whom_to_talk_to_must_be_said(tmp_path: Path) -> None:
    key, certificate = new_keys(tmp_path, "a")
    with pytest.raises(ConfigError, match="give allow=, a list of workers, or ca=, an authority"):
        ServerKeys(key)
    for both in ({}, {"server": certificate, "ca": certificate}):
        with pytest.raises(ConfigError, match="give server=, its certificate, or ca="):
            WorkerKeys(key, **both)
    (tmp_path / "empty").write_text("# nobody\n")
    with pytest.raises(ConfigError, match="empty: holds no certificate"):
        WorkerKeys(key, tmp_path / "empty")
    with pytest.raises(ConfigError, match="empty: holds no certificate of an authority"):
        ServerKeys(key, ca=tmp_path / "empty")


def test_a_server_is_known_by_its_certificate_or_its_fingerprint(tmp_path: Path) -> None:
    key, certificate = new_keys(tmp_path, "a")
    expected = print_of(certificate)
    for server in (certificate, expected, "sha256:" + expected[7:].upper()):
        assert WorkerKeys(key, server).fingerprints() == {expected}


LOADERS: list[Callable[[Path, Path], object]] = [
    lambda key, path: ServerKeys(path, key.with_suffix(".crt")),
    lambda key, path: ServerKeys(key, path),
]


@pytest.mark.parametrize("load", LOADERS, ids=["key", "list"])
def test_a_file_that_is_no_text_is_one_sentence_without_its_content(
    tmp_path: Path, load: Callable[[Path, Path], object]
) -> None:
    key, _ = new_keys(tmp_path, "a")
    path = tmp_path / "bytes.key"
    path.write_bytes(key.read_bytes() + b"hidden \xff\xfe")
    with pytest.raises(ConfigError) as caught:
        load(key, path)
    assert str(caught.value) == f"{path}: is not text, expected a key or certificates"
    told = "".join(traceback.format_exception(caught.value))
    assert "hidden" not in told
    assert "0xff" not in told


@pytest.mark.parametrize("load", LOADERS, ids=["key", "list"])
def test_a_file_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, load: Callable[[Path, Path], object]
) -> None:
    key, _ = new_keys(tmp_path, "a")
    with pytest.raises(ConfigError, match="gone: cannot be read: No such file or directory"):
        load(key, tmp_path / "gone")


def test_a_list_has_fingerprints_names_and_ranks(tmp_path: Path) -> None:
    _, first = new_keys(tmp_path, "worker-1")
    _, second = new_keys(tmp_path, "worker-2")
    path = tmp_path / "allowed"
    path.write_text(f"# ours\n{print_of(first)} one\n\n{print_of(second)} ranks=0,2-3 # theirs\n")
    assert read_allowed(path) == {
        print_of(first): Grant("one"),
        print_of(second): Grant("", frozenset({0, 2, 3})),
    }
    path.write_text(first.read_text() + second.read_text())
    assert list(read_allowed(path)) == [print_of(first), print_of(second)]
    assert list(read_allowed(tmp_path)) == [print_of(first), print_of(second)]


@pytest.mark.parametrize(
    "line", ["sha256:{0}", "sha256:{0} a b", "sha512:{0}00", "md5:{0}", "sha256:{0}00 ranks=x"]
)
def test_a_line_that_is_none_is_named_and_not_repeated(tmp_path: Path, line: str) -> None:
    _, certificate = new_keys(tmp_path, "a")
    path, secret = tmp_path / "allowed", "7e" * 31
    path.write_text(certificate.read_text() + line.format(secret) + "\n")
    number = certificate.read_text().count("\n") + 1
    with pytest.raises(ConfigError, match=f"allowed: line {number}: ") as caught:
        read_allowed(path)
    assert secret not in str(caught.value)


def test_ranks_are_numbers_and_ranges() -> None:
    assert parse_ranks("0,2-3,7", where="") == {0, 2, 3, 7}
    for text in ("", "-1", "1-", "a", "1,,2", "0-99999999999"):
        with pytest.raises(ConfigError, match=r"ranks|rank above"):
            parse_ranks(text, where="here")


def test_a_damaged_certificate_is_named(tmp_path: Path) -> None:
    key, certificate = new_keys(tmp_path, "a")
    certificate_of(key).write_text(certificate.read_text().replace("M", "?", 3))
    with pytest.raises(ConfigError, match=r"cannot be used together|is damaged"):
        WorkerKeys(key, "sha256:" + "0" * 64)
