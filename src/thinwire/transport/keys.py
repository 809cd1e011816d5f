"""``KeyPair``: keys of servers and workers, and their files. A secret is in no repr, log or error.

Files are text. ``NAME.secret`` has two lines, ``public HEX`` and ``secret HEX``, and can be read by
its owner alone. ``NAME.public``, and a list of allowed keys, has a line ``HEX NAME`` for each key.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from thinwire.errors import ConfigError

KEY_NBYTES = 32


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, 32 bytes each. ``thinwire.transport.zeromq.new_keys`` makes one."""

    public: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check_key(self.public, where="keys: public key")
        _check_key(self.secret, where="keys: secret key")


@dataclass(frozen=True, slots=True)
class ServerCurve:
    """A server's own keys and the public keys of its workers: it accepts no others."""

    keys: KeyPair
    allowed: frozenset[bytes]

    def __post_init__(self) -> None:
        for key in self.allowed:
            _check_key(key, where="allowed public key")


@dataclass(frozen=True, slots=True)
class WorkerCurve:
    """A worker's own keys and the public key of its server: it accepts no other."""

    keys: KeyPair
    server_public: bytes

    def __post_init__(self) -> None:
        _check_key(self.server_public, where="server's public key")


def _check_key(key: bytes, *, where: str) -> None:
    if len(key) != KEY_NBYTES:
        raise ConfigError(f"{where}: {len(key)} bytes, expected {KEY_NBYTES}")


def save_keys(keys: KeyPair, folder: Path, name: str) -> tuple[Path, Path]:
    """Write ``NAME.public`` and ``NAME.secret``, and return both paths. Overwrites nothing."""
    if not name or set(name) & set("/ \t\r\n"):
        raise ConfigError(f"keys: name {name!r}, expected a word without blanks or slashes")
    public, secret = folder / f"{name}.public", folder / f"{name}.secret"
    for path in (public, secret):
        if path.exists():
            raise ConfigError(f"{path}: exists already, and keys are not overwritten")
    _write_new(secret, f"public {keys.public.hex()}\nsecret {keys.secret.hex()}\n", mode=0o600)
    _write_new(public, f"{keys.public.hex()} {name}\n", mode=0o644)
    return public, secret


def _write_new(path: Path, text: str, *, mode: int) -> None:
    # The mode is given to open: a moment between writing and chmod is enough to be read.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)


def load_keys(path: Path) -> KeyPair:
    """Read a ``.secret`` file. Refuses one that others can read: its secret may be known."""
    mode = _mode_of(path)
    if mode & 0o077:
        raise ConfigError(
            f"{path}: its mode is {mode:04o}, so others can read this secret; make new keys, "
            f"or, if no other user has read it, use chmod 600"
        )
    lines = [line.split() for line in read_key_file(path).splitlines()]
    if len(lines) != 2 or [line[:1] for line in lines] != [["public"], ["secret"]]:
        raise ConfigError(f"{path}: expected two lines, 'public HEX' and 'secret HEX'")
    public, secret = (_read_key(line[1:], where=f"{path}: {line[0]} key") for line in lines)
    return KeyPair(public, secret)


def load_public_keys(paths: Iterable[Path]) -> frozenset[bytes]:
    """All keys of some ``.public`` files or lists of allowed keys."""
    return frozenset(
        _read_key(line.split()[:1], where=f"{path}: line {number}")
        for path in paths
        for number, line in enumerate(read_key_file(path).splitlines(), start=1)
        if line.strip()
    )


def read_key_file(path: Path) -> str:
    """The text of a file of keys. No error repeats any of it, because it may be a secret."""
    try:
        return path.read_text()
    except UnicodeError:
        text = f"{path}: is not text, expected a file of keys (thinwire keys new)"
        raise ConfigError(text) from None  # the cause would show the bytes
    except OSError as error:
        raise _unreadable(path, error) from error


def _mode_of(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path}: cannot be read: {error.strerror}")


def _read_key(words: list[str], *, where: str) -> bytes:
    try:
        key = bytes.fromhex(" ".join(words))
    except ValueError:
        key = b""
    if len(key) != KEY_NBYTES:
        # The words are not quoted: they may be a secret that was mistyped or put in the wrong file.
        raise ConfigError(f"{where}: expected {2 * KEY_NBYTES} hexadecimal digits")
    return key
