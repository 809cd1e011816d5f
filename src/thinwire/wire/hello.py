"""``Hello``: the first bytes of a connection, in clear: who speaks, and whether by TLS.

A worker sends one, the server answers with one, and only then TLS begins. So each side can say
what is wrong in one word, a stranger gets no further than a hash of its certificate, and a server
needs only the fingerprint of a certificate to let its owner prove to have the key. Certificates are
public. Nobody can talk either side out of TLS: one that has keys does not go on without.

Layout: "thinwire", version u8, word u8, length u16 of the certificate in DER, the certificate.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from thinwire.errors import RemoteProtocolError
from thinwire.wire.stream import ENDED

_MAGIC, _VERSION = b"thinwire", 1
_HEAD = struct.Struct("<8sBBH")
MOST_CERTIFICATE_NBYTES = 1 << 13


class Word(IntEnum):
    """What a hello says."""

    PLAIN = 0
    TLS = 1
    NEEDS_KEYS = 2
    HAS_NO_KEYS = 3
    UNKNOWN_KEY = 4
    OTHER_VERSION = 5


REFUSALS = {
    Word.NEEDS_KEYS: (
        "it has no keys",
        "needs keys, and this worker has none: give keys=tw.WorkerKeys(...)",
    ),
    Word.HAS_NO_KEYS: (
        "it expects this server to have keys",
        "has no keys, but this worker has: start it with --keys and --allow",
    ),
    Word.UNKNOWN_KEY: (
        "its key is not on the list",
        "does not know this worker's key: is it in the server's list of workers?",
    ),
    Word.OTHER_VERSION: (
        "it speaks another version of the protocol",
        "has another version of Thinwire: install the same on all machines",
    ),
}
"""What words of a server mean: of the worker for the server's log, of the server for its worker."""


@dataclass(frozen=True, slots=True)
class Hello:
    word: Word
    certificate: bytes = b""

    def pack(self) -> bytes:
        head = _HEAD.pack(_MAGIC, _VERSION, self.word, len(self.certificate))
        return head + self.certificate


def word_for(hello: Hello, *, has_keys: bool, is_known: bool) -> Word:
    """What a server answers. ``is_known``: it lets in the certificate that ``hello`` names."""
    if hello.word is Word.OTHER_VERSION:
        return hello.word
    if not has_keys:
        return Word.PLAIN if hello.word is Word.PLAIN else Word.HAS_NO_KEYS
    if hello.word is not Word.TLS:
        return Word.NEEDS_KEYS
    return Word.TLS if is_known else Word.UNKNOWN_KEY


def missing_nbytes(data: bytes) -> int:
    """How many bytes a hello that begins with ``data`` still lacks. Never reads beyond it: what
    follows may be TLS. Raises RemoteProtocolError for what is no hello.
    """
    if data[:8] != _MAGIC[: len(data)]:
        raise RemoteProtocolError("what it sent is no hello of Thinwire")
    if len(data) < _HEAD.size:
        return _HEAD.size - len(data)
    nbytes = int(_HEAD.unpack_from(data)[-1])
    if nbytes > MOST_CERTIFICATE_NBYTES:
        raise RemoteProtocolError(f"its certificate has {nbytes} bytes")
    return _HEAD.size + nbytes - len(data)


def unpack_hello(data: bytes) -> Hello:
    """A hello that lacks nothing. One of another version says so."""
    _, version, word, _ = _HEAD.unpack_from(data)
    if version != _VERSION:
        return Hello(Word.OTHER_VERSION)
    if word not in set(Word):
        raise RemoteProtocolError(f"its hello has the word {word}")
    return Hello(Word(word), bytes(data[_HEAD.size :]))


class HelloReader:
    """Reads a hello from a socket. If that does not wait, call ``read`` again after its
    BlockingIOError."""

    def __init__(self) -> None:
        self._data = b""

    def read(self, recv: Callable[[int], bytes]) -> Hello:
        while missing := missing_nbytes(self._data):
            more = recv(missing)
            if not more:
                raise ConnectionError(ENDED)
            self._data += more
        return unpack_hello(self._data)
