"""A client that speaks ZMTP 3.0 by hand, to say what no ZeroMQ library would."""

from __future__ import annotations

import socket

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY" + b"\x0bSocket-Type" + b"\x00\x00\x00\x06DEALER"
MORE = 1
LONG = 2
_COMMAND = 4


def tcp(address: str) -> socket.socket:
    """A plain TCP connection to ``tcp://HOST:PORT``."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def shake_hands(address: str, *, routing_id: bytes = b"") -> socket.socket:
    """A connection on which the server expects messages."""
    client = tcp(address)
    ready = _READY + b"\x08Identity" + len(routing_id).to_bytes(4, "big") + routing_id
    try:
        client.sendall(GREETING + bytes([4, len(ready)]) + ready)
        _exactly(client, len(GREETING))
        _, nbytes = _exactly(client, 2)  # the server's READY is a short command
        _exactly(client, nbytes)
    except BaseException:
        client.close()
        raise
    return client


def _exactly(client: socket.socket, nbytes: int) -> bytes:
    received = b""
    while len(received) < nbytes:
        more = client.recv(nbytes - len(received))
        if not more:
            raise ConnectionError("the server has ended this connection")
        received += more
    return received


def part(data: bytes, *, more: bool = False) -> bytes:
    """One part of a message."""
    flags = MORE if more else 0
    if len(data) < 256:
        return bytes([flags, len(data)]) + data
    return bytes([flags | LONG]) + len(data).to_bytes(8, "big") + data


def read_part(client: socket.socket) -> bytes:
    """The next part that is no command."""
    while True:
        flags, nbytes = _exactly(client, 2)
        if flags & LONG:
            nbytes = int.from_bytes(bytes([nbytes]) + _exactly(client, 7), "big")
        data = _exactly(client, nbytes)
        if not flags & _COMMAND:
            return data


def declared(nbytes: int) -> bytes:
    """The beginning of a part that says it has ``nbytes``."""
    return bytes([LONG]) + nbytes.to_bytes(8, "big")


def is_cut(client: socket.socket) -> bool:
    """Whether the server ends this connection. Waits for it."""
    try:
        while client.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True
