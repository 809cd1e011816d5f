"""``ServerTls`` and ``WorkerTls``: TLS 1.3 in which both sides show a certificate.

Of certificates without an authority one alone is trusted in each handshake: the very one that the
other side named before and whose fingerprint is known here.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from thinwire.errors import ConfigError
from thinwire.keys.lists import Grant, fingerprint, read_allowed
from thinwire.keys.settings import ServerKeys, WorkerKeys, certificate_of, own_certificate

_logger = logging.getLogger(__name__)

_ANY = Grant()
_LIST_SECONDS = 1.0


class ServerTls:
    """What a listener needs of its keys."""

    def __init__(self, keys: ServerKeys) -> None:
        self._keys = keys
        self.certificate = own_certificate(Path(keys.key))
        self._contexts: dict[bytes, ssl.SSLContext] = {}
        self._seen: object = None
        self._looked = -_LIST_SECONDS
        self._allowed: dict[str, Grant] = {}
        self.read_again(now=0.0)

    def read_again(self, *, now: float) -> bool:
        """Read the list of workers if it has changed; returns whether it has. Looks once a second,
        however often it is called. A list that cannot be read changes nothing."""
        if self._keys.allow is None or now - self._looked < _LIST_SECONDS:
            return False
        self._looked = now
        try:
            seen = _signature(Path(self._keys.allow))
            if seen == self._seen:
                return False
            self._allowed, self._seen = read_allowed(Path(self._keys.allow)), seen
        except (ConfigError, OSError) as error:
            if self._seen != str(error):
                _logger.warning("the list of workers stays as it was: %s", error)
            self._seen = str(error)
            return False
        self._contexts.clear()
        return True

    def grant(self, certificate: bytes) -> Grant | None:
        """What its owner may do; None if it is not let in. Says nothing about who that is."""
        if self._keys.allow is None:
            return _ANY if certificate else None
        return self._allowed.get(fingerprint(certificate))

    def context(self, certificate: bytes) -> ssl.SSLContext:
        """For a worker that must show this certificate, which has a grant."""
        trusted = b"" if self._keys.ca is not None else certificate
        if trusted not in self._contexts:
            context = _context(ssl.PROTOCOL_TLS_SERVER, Path(self._keys.key))
            context.num_tickets = 0  # nothing is resumed
            _trust(context, self._keys.ca, certificate)
            self._contexts[trusted] = context
        return self._contexts[trusted]


class WorkerTls:
    """What a connection needs of its keys."""

    def __init__(self, keys: WorkerKeys) -> None:
        self._keys = keys
        self.certificate = own_certificate(Path(keys.key))

    def knows(self, certificate: bytes) -> bool:
        """Whether this may be the server's: an authority decides only during the handshake."""
        return self._keys.ca is not None or fingerprint(certificate) in self._keys.fingerprints()

    def context(self, certificate: bytes) -> ssl.SSLContext:
        """For a server that must show this certificate, which is known."""
        context = _context(ssl.PROTOCOL_TLS_CLIENT, Path(self._keys.key))
        context.check_hostname = self._keys.ca is not None
        _trust(context, self._keys.ca, certificate)
        return context


def _context(protocol: int, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate_of(key), key, password="")
    return context


def _trust(context: ssl.SSLContext, ca: str | Path | None, certificate: bytes) -> None:
    if ca is not None:
        context.load_verify_locations(cafile=ca)
    else:
        # Also if an authority has signed it that is not known here.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=certificate)


def _signature(path: Path) -> object:
    """Changes when the list does."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    status = [(str(file), file.stat()) for file in files]
    return [(name, found.st_mtime_ns, found.st_size, found.st_ino) for name, found in status]
