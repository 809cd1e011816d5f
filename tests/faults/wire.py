"""A client that speaks our wire by hand, to say what no worker of ours would."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable

from thinwire.keys.settings import WorkerKeys
from thinwire.keys.tls import WorkerTls

SECONDS = 30.0
"""Of each wait."""

PLAIN, TLS, NEEDS_KEYS, HAS_NO_KEYS, UNKNOWN_KEY, OTHER_VERSION = range(6)
HEARTBEAT = b"\xff" * 4
_RESET = struct.pack("ii", 1, 0)


def hello(word: int = PLAIN, certificate: bytes = b"", *, version: int = 1) -> bytes:
    """What each side says first."""
    return b"thinwire" + struct.pack("<BBH", version, word, len(certificate)) + certificate


def tcp(address: str) -> socket.socket:
    """A plain TCP connection to ``tcp://HOST:PORT``."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def resets(client: socket.socket) -> None:
    """When it is closed, the connection does not end, but is reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def read_hello(client: socket.socket) -> tuple[int, bytes]:
    """Word and certificate of the server."""
    head = _exactly(client, 12)
    magic, version, word, nbytes = struct.unpack("<8sBBH", head)
    assert (magic, version) == (b"thinwire", 1), head
    return word, _exactly(client, nbytes)


def shake_hands(address: str) -> socket.socket:
    """A connection on which the server expects frames."""
    return _started(address, _shake_hands)


def tls_shake_hands(address: str, keys: WorkerKeys) -> ssl.SSLSocket:
    """The same by TLS."""
    client = _started(address, lambda client: _wait_for_heartbeat(secured(client, keys)))
    assert isinstance(client, ssl.SSLSocket)
    return client


def secured(client: socket.socket, keys: WorkerKeys) -> ssl.SSLSocket:
    """After hellos and a handshake of TLS, which the server may refuse only later."""
    mine = WorkerTls(keys)
    client.sendall(hello(TLS, mine.certificate))
    word, certificate = read_hello(client)
    if word != TLS:
        raise ConnectionError(f"the server says {word}")
    return mine.context(certificate).wrap_socket(client)


def _started(address: str, start: Callable[[socket.socket], socket.socket]) -> socket.socket:
    client = tcp(address)
    try:
        return start(client)
    except BaseException:
        client.close()
        raise


def _shake_hands(client: socket.socket) -> socket.socket:
    client.sendall(hello())
    word, _ = read_hello(client)
    if word != PLAIN:
        raise ConnectionError(f"the server says {word}")
    return _wait_for_heartbeat(client)


def _wait_for_heartbeat(client: socket.socket) -> socket.socket:
    assert _exactly(client, 4) == HEARTBEAT, "the first word of a server is a heartbeat"
    return client


def _exactly(client: socket.socket, nbytes: int) -> bytes:
    received = b""
    while len(received) < nbytes:
        more = client.recv(nbytes - len(received))
        if not more:
            raise ConnectionError("the server has ended this connection")
        received += more
    return received


def frame(data: bytes) -> bytes:
    """One frame behind its length."""
    return declared(len(data)) + data


def declared(nbytes: int) -> bytes:
    """The beginning of a frame that says it has ``nbytes``."""
    return struct.pack("<I", nbytes)


def read_frame(client: socket.socket) -> bytes:
    """The next frame; heartbeats are passed over."""
    while (head := _exactly(client, 4)) == HEARTBEAT:
        pass
    (nbytes,) = struct.unpack("<I", head)
    return _exactly(client, nbytes)


def is_cut(client: socket.socket) -> bool:
    """Whether the server ends this connection. Waits for it."""
    try:
        while client.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True
