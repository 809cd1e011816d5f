"""Records of TLS 1.3 by hand: a client that is let in, and then says what OpenSSL would not."""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import struct
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.faults import wire
from thinwire.keys.settings import WorkerKeys
from thinwire.keys.tls import WorkerTls

ALERT, HANDSHAKE, DATA = 21, 22, 23
UPDATE_KEY = b"\x18\x00\x00\x01\x00"
UPDATE_BOTH_KEYS = b"\x18\x00\x00\x01\x01"
"""Messages of a handshake."""


class Records:
    """Encrypts records for the server on ``socket``. Reads nothing but the handshake."""

    def __init__(self, address: str, keys: WorkerKeys, folder: Path) -> None:
        self.socket = wire.tcp(address)
        mine = WorkerTls(keys)
        self.socket.sendall(wire.hello(wire.TLS, mine.certificate))
        context = mine.context(wire.read_hello(self.socket)[1])
        context.keylog_filename = str(folder / "secrets")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(incoming, outgoing)
        while True:
            try:
                self._ssl.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.socket.sendall(outgoing.read())
                incoming.write(self.socket.recv(1 << 16))
        self.socket.sendall(outgoing.read())
        cipher = self._ssl.cipher()
        assert cipher is not None
        self._hash = {"TLS_AES_256_GCM_SHA384": hashlib.sha384}[cipher[0]]
        self._secret = self._from_log(folder / "secrets")
        self._sent = 0

    def _from_log(self, path: Path) -> bytes:
        for line in path.read_text().splitlines():
            if line.startswith("CLIENT_TRAFFIC_SECRET_0 "):
                return bytes.fromhex(line.split()[2])
        raise AssertionError("no secret was logged")

    def data(self, data: bytes) -> bytes:
        return self.record(data, DATA)

    def record(self, data: bytes, kind: int) -> bytes:
        """The next one, as it goes over the wire."""
        head = struct.pack(">BHH", DATA, 0x0303, len(data) + 1 + 16)
        key, iv = self._expanded(b"key", 32), self._expanded(b"iv", 12)
        nonce = (int.from_bytes(iv, "big") ^ self._sent).to_bytes(12, "big")
        self._sent += 1
        return head + AESGCM(key).encrypt(nonce, data + bytes([kind]), head)

    def new_key(self, message: bytes = UPDATE_KEY) -> bytes:
        """A record that announces the next key, which is used from now on."""
        data = self.record(message, HANDSHAKE)
        self._secret, self._sent = self._expanded(b"traffic upd", self._hash().digest_size), 0
        return data

    def _expanded(self, label: bytes, nbytes: int) -> bytes:
        """HKDF-Expand-Label of RFC 8446, for up to one block."""
        label = b"tls13 " + label
        info = struct.pack(">HB", nbytes, len(label)) + label + b"\0\1"
        return hmac.digest(self._secret, info, self._hash)[:nbytes]

    def close(self) -> None:
        self.socket.close()


def client_hello() -> bytes:
    """The first record of a client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("it was not awaited")


def sends_all(client: socket.socket, data: bytes) -> bool:
    """Whether the server takes it, and does not end the connection before."""
    try:
        client.sendall(data)
    except ConnectionError:
        return False
    return True
