"""Strangers at the port of a real listener: whatever they do, an honest worker is served."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from tests.faults import zmtp
from tests.transports import ANY_PORT, DEADLINE_SECONDS, Rig, event, zeromq, zeromq_curve
from thinwire import errors
from thinwire.transport.base import Connection, PeerGone, Received
from thinwire.transport.keys import KeyPair, ServerCurve, WorkerCurve
from thinwire.transport.peer_limits import MIB, TransportLimits
from thinwire.transport.zeromq import connect, listen, new_keys

SMALL = TransportLimits(max_message_nbytes=MIB, max_unsent_nbytes=8 * MIB)


class Server:
    """Echoes what honest peers say, on a thread; remembers who was gone."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.gone: list[PeerGone] = []
        self.changed = threading.Condition()
        self.strangers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        listener = self.rig.listener
        with suppress(errors.TransportClosed):
            while True:
                found = listener.receive(deadline_seconds=DEADLINE_SECONDS)
                if isinstance(found, Received) and bytes(found.frame[:4]) == b"ping":
                    listener.admit(found.peer)
                    listener.send(found.peer, bytes(found.frame))
                elif isinstance(found, PeerGone):
                    with self.changed:
                        self.gone.append(found)
                        self.changed.notify_all()

    def stranger(self, start: Callable[[str], socket.socket] = zmtp.shake_hands) -> socket.socket:
        self.strangers.append(start(self.rig.listener.address))
        return self.strangers[-1]

    def lost(self) -> PeerGone:
        with self.changed:
            assert self.changed.wait_for(lambda: self.gone, timeout=DEADLINE_SECONDS)
            return self.gone.pop()

    def close(self) -> None:
        for stranger in self.strangers:
            stranger.close()
        self.rig.close()
        self._thread.join()


@contextmanager
def serving(rig: Rig) -> Iterator[Server]:
    server = Server(rig)
    try:
        yield server
    finally:
        server.close()


def ping(connection: Connection, times: int = 1) -> None:
    """The honest worker is served."""
    for n in range(times):
        connection.send(b"ping %d" % n, deadline_seconds=DEADLINE_SECONDS)
        assert connection.receive(deadline_seconds=DEADLINE_SECONDS) == b"ping %d" % n


def resident_nbytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_unknown_key_is_refused_in_one_sentence() -> None:
    server, worker = new_keys(), new_keys()
    listener = listen(ANY_PORT, curve=ServerCurve(server, frozenset({worker.public})))
    with pytest.raises(errors.Refused, match="does not know this worker's key") as caught:
        connect(
            listener.address,
            deadline_seconds=DEADLINE_SECONDS,
            curve=WorkerCurve(new_keys(), server.public),
        )
    assert listener.address in str(caught.value)
    connect(
        listener.address,
        deadline_seconds=DEADLINE_SECONDS,
        curve=WorkerCurve(worker, server.public),
    ).close()
    listener.close()


def test_a_public_key_without_its_secret_is_worth_nothing() -> None:
    server, worker = new_keys(), new_keys()
    listener = listen(ANY_PORT, curve=ServerCurve(server, frozenset({worker.public})))
    stolen = KeyPair(worker.public, new_keys().secret)
    with pytest.raises(errors.TransportTimeout, match="did not let this worker in"):
        connect(listener.address, deadline_seconds=0.5, curve=WorkerCurve(stolen, server.public))
    listener.close()


@pytest.mark.parametrize("keys", ["none", "of another server"])
def test_who_cannot_shake_hands_is_told_so(keys: str) -> None:
    server, worker = new_keys(), new_keys()
    listener = listen(ANY_PORT, curve=ServerCurve(server, frozenset({worker.public})))
    curve = None if keys == "none" else WorkerCurve(worker, new_keys().public)
    with pytest.raises(errors.TransportTimeout) as caught:
        connect(listener.address, deadline_seconds=0.5, curve=curve)
    assert "did not let this worker in within 0.5 s" in str(caught.value)
    listener.close()


def test_a_worker_with_keys_does_not_talk_to_a_server_without() -> None:
    listener = listen(ANY_PORT)
    with pytest.raises(errors.TransportTimeout, match="did not let this worker in"):
        connect(
            listener.address,
            deadline_seconds=0.5,
            curve=WorkerCurve(new_keys(), new_keys().public),
        )
    listener.close()


@pytest.mark.parametrize("make", [zeromq, zeromq_curve])
def test_random_bytes_at_the_port(make: Callable[[TransportLimits], Rig]) -> None:
    with serving(make(SMALL)) as server:
        honest = server.rig.connect()
        for seed in range(50):
            stranger = server.stranger(zmtp.tcp)
            # Some begin like a greeting, to get beyond the first check.
            start = (b"", b"\xff" + bytes(8) + b"\x7f", b"GET / HTTP/1.1\r\n\r\n")[seed % 3]
            with suppress(ConnectionError):
                stranger.sendall(start + os.urandom(seed * 40))
            ping(honest)
        ping(server.rig.connect())


@pytest.mark.parametrize("nbytes", [2 * MIB, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_a_huge_declared_size_is_not_believed(nbytes: int) -> None:
    with serving(zeromq(SMALL)) as server:
        honest = server.rig.connect()
        before = resident_nbytes()
        stranger = server.stranger()
        stranger.sendall(zmtp.part(b"ping"))
        assert stranger.recv(100).endswith(b"ping")
        stranger.sendall(zmtp.declared(nbytes) + bytes(100))
        assert zmtp.is_cut(stranger)
        assert server.lost().reason == "the connection ended"
        assert resident_nbytes() - before < 16 * MIB
        ping(honest)


def test_a_message_of_5000_parts_ends_its_connection() -> None:
    with serving(zeromq(SMALL)) as server:
        honest = server.rig.connect()
        stranger = server.stranger()
        stranger.sendall(zmtp.part(b"x", more=True) * 4999 + zmtp.part(b"x"))
        assert server.lost().reason == "it sent a message of 5000 parts, expected 1"
        assert zmtp.is_cut(stranger)
        ping(honest)


@pytest.mark.parametrize("nbytes", [10_000, 200])
def test_a_message_without_end_is_ended(nbytes: int) -> None:
    """libzmq alone takes it until memory is gone: it counts only complete messages."""
    with serving(zeromq(SMALL)) as server:
        honest = server.rig.connect()
        before = resident_nbytes()
        stranger = server.stranger()
        stranger.settimeout(2)
        parts = zmtp.part(bytes(nbytes), more=True) * (MIB // nbytes)
        most = 0
        with pytest.raises(OSError, match=r"reset|pipe|timed out"):  # noqa: PT012
            for _ in range(100_000):
                stranger.sendall(parts)
                most = max(most, resident_nbytes() - before)
        ping(honest, 10)
    print(f"\n{nbytes} bytes a part: {most >> 20} MiB at most")


def test_an_honest_worker_is_served_during_a_flood() -> None:
    limits = replace(SMALL, max_messages_per_second=500)
    with serving(zeromq(limits)) as server:
        honest = server.rig.connect()
        ping(honest)

        def flood(data: bytes) -> None:
            stranger = server.stranger()
            with suppress(OSError):
                while True:
                    stranger.sendall(data)

        threads = [
            threading.Thread(target=flood, args=(data,), daemon=True)
            for data in (
                zmtp.part(b"x") * 1000,
                zmtp.part(bytes(MIB)),
                b"\x04\x07\x04PING\0\0" * 999,
            )
        ]
        for thread in threads:
            thread.start()
        ping(honest, 100)
        assert "before it was admitted" in server.lost().reason
        for stranger in server.strangers:
            with suppress(OSError):
                stranger.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


CRASH = """
import socket, struct
from tests.faults import zmtp
from tests.transports import zeromq
rig = zeromq()
client = zmtp.shake_hands(rig.listener.address)
client.sendall(zmtp.part(b"x") * 6 + b"\\x04\\x07\\x04PING\\0\\0" + zmtp.part(b"x"))
assert rig.listener.receive(deadline_seconds=30) is not None
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
client.close()
while rig.listener.receive(deadline_seconds=1) is not None:
    pass
rig.close()
"""


def test_a_reset_with_a_ping_unread_does_not_end_the_server() -> None:
    """libzmq 4.3.5 aborts if a limit of its own was reached, which is why it has none: port.py."""
    done = subprocess.run(
        [sys.executable, "-c", CRASH], capture_output=True, check=False, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == 0, done.stderr


def test_connections_that_say_nothing_are_ended() -> None:
    limits = TransportLimits(max_peers=8, first_frame_seconds=0.5)
    with serving(zeromq(limits)) as server:
        honest = server.rig.connect()
        ping(honest)
        for start in (zmtp.tcp, zmtp.shake_hands):
            silent = server.stranger(start)
            assert zmtp.is_cut(silent)
        for _ in range(40):
            server.stranger(zmtp.tcp)
        ping(server.rig.connect())
        ping(honest)


def test_what_nobody_reads_takes_bounded_memory() -> None:
    """A server that is busy drops who floods it; its own workers wait by themselves."""
    limits = replace(SMALL, max_unread_nbytes=8 * MIB)
    rig = zeromq(limits)
    before = resident_nbytes()
    with zmtp.shake_hands(rig.listener.address) as peer, suppress(OSError):
        peer.sendall(zmtp.part(b"hello"))
        event(rig.listener)
        for _ in range(10_000):
            peer.sendall(zmtp.part(bytes(MIB)))
        pytest.fail("it was not dropped")
    assert resident_nbytes() - before < 256 * MIB
    while isinstance(found := event(rig.listener), Received):
        pass
    assert "are unread" in found.reason or "faster than it is read" in found.reason
    rig.close()


def test_what_a_peer_does_not_read_takes_bounded_memory() -> None:
    limits = TransportLimits(max_message_nbytes=MIB, max_unsent_nbytes=32 * MIB)
    rig = zeromq(limits)
    stranger = zmtp.shake_hands(rig.listener.address)
    stranger.sendall(zmtp.part(b"hello"))
    received = rig.listener.receive(deadline_seconds=DEADLINE_SECONDS)
    assert isinstance(received, Received)
    before = resident_nbytes()
    for _ in range(400):
        rig.listener.send(received.peer, (b"head", memoryview(bytes(MIB - 4))))
    lost = rig.listener.receive(deadline_seconds=DEADLINE_SECONDS)
    assert isinstance(lost, PeerGone)
    assert "it does not read" in lost.reason
    assert resident_nbytes() - before < 2 * limits.max_unsent_nbytes
    stranger.close()
    rig.close()
