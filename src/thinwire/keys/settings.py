"""``ServerKeys`` and ``WorkerKeys``: the key of a process, and whom it talks to.

``thinwire keys new NAME`` makes ``NAME.key``, which only its owner can read, and the certificate
``NAME.crt``, which others may see.
"""

from __future__ import annotations

import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import ConfigError
from thinwire.keys.lists import (
    OLD_KIND,
    certificates_in,
    is_fingerprint,
    read_allowed,
    read_text,
)

_NEW = "make new ones with 'thinwire keys new NAME'"


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """A server's ``key``, and the workers it lets in: those on the list ``allow``, and if ``ca`` is
    given those with a certificate of this authority. With both, a worker needs both.

    ``allow`` is a file of fingerprints or certificates, or a folder of ``.crt`` files. It is read
    again when it changes: a worker that is not on it any more is disconnected.
    """

    key: str | Path
    allow: str | Path | None = None
    ca: str | Path | None = None

    def __post_init__(self) -> None:
        _check_identity(Path(self.key))
        if self.allow is None and self.ca is None:
            raise ConfigError("ServerKeys: give allow=, a list of workers, or ca=, an authority")
        if self.allow is not None:
            read_allowed(Path(self.allow))
        _check_ca(self.ca)


@dataclass(frozen=True, slots=True)
class WorkerKeys:
    """A worker's ``key``, and which ``server`` it talks to: the one with this certificate (a file,
    or its fingerprint), or if ``ca`` is given one of the address's name and of this authority.
    """

    key: str | Path
    server: str | Path | None = None
    ca: str | Path | None = None

    def __post_init__(self) -> None:
        _check_identity(Path(self.key))
        if (self.server is None) == (self.ca is None):
            raise ConfigError("WorkerKeys: give server=, its certificate, or ca=, its authority")
        if not self.fingerprints() and self.ca is None:
            raise ConfigError(f"{self.server}: holds no certificate: {_NEW}")
        _check_ca(self.ca)

    def fingerprints(self) -> frozenset[str]:
        """Those of the server, or of all servers: a file may hold several certificates."""
        if self.server is None:
            return frozenset()
        server = str(self.server)
        known = [server.lower()] if is_fingerprint(server) else read_allowed(Path(server))
        return frozenset(known)


def certificate_of(key: Path) -> Path:
    return key.with_suffix(".crt")


def own_certificate(key: Path) -> bytes:
    """The first certificate beside ``key``, in DER: others may be those of its authority."""
    path = certificate_of(key)
    for der in certificates_in(path, read_text(path)):
        return der
    raise ConfigError(f"{path}: holds no certificate: {_NEW}")


def _check_identity(key: Path) -> None:
    """Refuse a key that others can read, or that has no certificate beside it."""
    text = read_text(key)
    if text.startswith("public "):
        raise ConfigError(f"{key}: {OLD_KIND}")
    mode = stat.S_IMODE(key.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{key}: its mode is {mode:04o}, so others can read this key; make new ones, or, if no "
            "other user has read it, use chmod 600"
        )
    if "PRIVATE KEY-----" not in text:
        raise ConfigError(f"{key}: holds no private key: {_NEW}")
    own_certificate(key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate_of(key), key, password=""
        )
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or "it is damaged, or has a passphrase"
        raise ConfigError(
            f"{key} and {certificate_of(key)} cannot be used together: {why}"
        ) from None


def _check_ca(ca: str | Path | None) -> None:
    if ca is not None and not list(certificates_in(Path(ca), read_text(Path(ca)))):
        raise ConfigError(f"{ca}: holds no certificate of an authority")
