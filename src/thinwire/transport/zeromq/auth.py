"""``secure_server`` and ``secure_worker``: CURVE keys, and the thread that checks new connections.

Without that thread CURVE would accept every key (ZeroMQ RFC 27, "ZAP").
"""

from __future__ import annotations

import threading

import zmq
from zmq.utils import z85

from thinwire.transport.keys import KeyPair, ServerCurve, WorkerCurve

_DOMAIN = "thinwire"
_ADDRESS = "inproc://zeromq.zap.01"


def new_keys() -> KeyPair:
    """A fresh key pair, from the system's random numbers."""
    public, secret = zmq.curve_keypair()
    return KeyPair(z85.decode(public), z85.decode(secret))


def secure_server(socket: zmq.Socket[bytes], curve: ServerCurve) -> None:
    """Let only ``curve.allowed`` connect. Call before ``bind``; ends with the socket's context."""
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_SECRETKEY, curve.keys.secret)
    socket.set(zmq.ZAP_DOMAIN, _DOMAIN.encode())
    socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without the thread every connection is refused
    handler = socket.context.socket(zmq.REP)
    handler.bind(_ADDRESS)
    threading.Thread(
        target=_answer, args=(handler, curve.allowed), name="thinwire keys", daemon=True
    ).start()


def secure_worker(socket: zmq.Socket[bytes], curve: WorkerCurve) -> None:
    """Talk to the server with this key and no other. Call before ``connect``."""
    socket.set(zmq.CURVE_SERVERKEY, curve.server_public)
    socket.set(zmq.CURVE_PUBLICKEY, curve.keys.public)
    socket.set(zmq.CURVE_SECRETKEY, curve.keys.secret)


def _answer(handler: zmq.Socket[bytes], allowed: frozenset[bytes]) -> None:
    try:
        while True:
            handler.send_multipart(_verdict(handler.recv_multipart(), allowed))
    except zmq.ContextTerminated:
        handler.close(linger=0)


def _verdict(request: list[bytes], allowed: frozenset[bytes]) -> list[bytes]:
    """The reply to one request: version, request, code, text, user and metadata."""
    version, number, domain, _address, _identity, mechanism, *credentials = request
    known = domain == _DOMAIN.encode() and mechanism == b"CURVE"
    if known and len(credentials) == 1 and credentials[0] in allowed:
        return [version, number, b"200", b"OK", b"", b""]
    return [version, number, b"400", b"unknown key", b"", b""]
