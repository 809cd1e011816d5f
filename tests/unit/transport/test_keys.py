"""transport/keys.py: files, their modes, and that secrets stay secret."""

from __future__ import annotations

import stat
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from thinwire.errors import ConfigError
from thinwire.transport.keys import (
    KeyPair,
    ServerCurve,
    WorkerCurve,
    load_keys,
    load_public_keys,
    save_keys,
)
from thinwire.transport.zeromq import new_keys


def test_keys_are_saved_and_loaded(tmp_path: Path) -> None:
    keys = new_keys()
    public, secret = save_keys(keys, tmp_path, "worker-1")
    assert load_keys(secret) == keys
    assert load_public_keys([public]) == {keys.public}
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert keys.secret.hex() not in public.read_text()


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    public, secret = save_keys(new_keys(), tmp_path, "a")
    before = secret.read_text()
    with pytest.raises(ConfigError, match="exists already"):
        save_keys(new_keys(), tmp_path, "a")
    public.unlink()
    with pytest.raises(ConfigError, match="exists already"):
        save_keys(new_keys(), tmp_path, "a")
    assert secret.read_text() == before


@pytest.mark.parametrize("name", ["", "a/b", "a b", "../a", "a\n"])
def test_a_name_is_one_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="expected a word"):
        save_keys(new_keys(), tmp_path, name)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    _, secret = save_keys(new_keys(), tmp_path, "a")
    secret.chmod(mode)
    with pytest.raises(ConfigError, match=f"its mode is {mode:04o}"):
        load_keys(secret)


def test_a_secret_is_in_no_repr_and_no_error(tmp_path: Path) -> None:
    keys = new_keys()
    for value in (keys, ServerCurve(keys, frozenset()), WorkerCurve(keys, keys.public)):
        assert "secret" not in repr(value)
        assert repr(keys.secret) not in repr(value)
    _, path = save_keys(keys, tmp_path, "a")
    for damaged in (path.read_text()[:-2] + "\n", path.read_text().replace("secret", "sekret")):
        path.write_text(damaged)
        with pytest.raises(ConfigError) as caught:
            load_keys(path)
        assert keys.secret.hex()[:8] not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load_public_keys([path])  # the wrong file
    assert keys.secret.hex()[:8] not in str(caught.value)


LOADERS = [load_keys, lambda path: load_public_keys([path])]


@pytest.mark.parametrize("load", LOADERS, ids=["secret", "list"])
def test_a_file_that_is_no_text_is_one_sentence_without_its_content(
    tmp_path: Path, load: Callable[[Path], object]
) -> None:
    _, path = save_keys(new_keys(), tmp_path, "a")
    path.write_bytes(path.read_bytes() + b"hidden \xff\xfe")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: is not text, expected a file of keys (thinwire keys new)"
    told = "".join(traceback.format_exception(caught.value))
    assert "hidden" not in told
    assert "0xff" not in told


@pytest.mark.parametrize("load", LOADERS, ids=["secret", "list"])
def test_a_file_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, load: Callable[[Path], object]
) -> None:
    with pytest.raises(ConfigError, match="gone: cannot be read: No such file or directory"):
        load(tmp_path / "gone")
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    with pytest.raises(ConfigError, match="folder: cannot be read: Is a directory"):
        load(folder)


def test_a_list_of_keys_has_one_in_each_line(tmp_path: Path) -> None:
    first, second = new_keys().public, new_keys().public
    path = tmp_path / "allowed"
    path.write_text(f"{first.hex()} worker-1\n\n{second.hex()}\n")
    assert load_public_keys([path]) == {first, second}
    path.write_text(f"{first.hex()}\n{second.hex()[:-1]} worker-2\n")
    with pytest.raises(ConfigError, match="line 2: expected 64 hexadecimal digits"):
        load_public_keys([path])


def test_keys_have_32_bytes() -> None:
    with pytest.raises(ConfigError, match="public key: 31 bytes, expected 32"):
        KeyPair(bytes(31), bytes(32))
    with pytest.raises(ConfigError, match="allowed public key: 3 bytes"):
        ServerCurve(new_keys(), frozenset({b"abc"}))
    with pytest.raises(ConfigError, match="server's public key: 0 bytes"):
        WorkerCurve(new_keys(), b"")
