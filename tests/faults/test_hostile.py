"""Strangers at the port of a real listener: whatever they do, an honest worker is served."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest

from tests.faults import wire
from tests.transports import ANY_PORT, DEADLINE_SECONDS, Rig, event, pair, tcp, tls
from thinwire import errors
from thinwire.clock import Deadline
from thinwire.keys.settings import WorkerKeys
from thinwire.transport.base import Connection, Listener, PeerGone, Received
from thinwire.transport.peer_limits import MIB, TransportLimits
from thinwire.transport.tcp import connect, listen

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

    def stranger(self, start: Callable[[str], socket.socket] = wire.shake_hands) -> socket.socket:
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
    server, worker = pair()
    _, other = pair()
    listener = listen(ANY_PORT, keys=server)
    unknown = WorkerKeys(other.key, worker.server)
    with pytest.raises(errors.Refused, match="does not know this worker's key") as caught:
        connect(listener.address, deadline_seconds=DEADLINE_SECONDS, keys=unknown)
    assert listener.address in str(caught.value)
    connect(listener.address, deadline_seconds=DEADLINE_SECONDS, keys=worker).close()
    listener.close()


def test_keys_on_one_side_alone_and_another_server_are_refused_at_once() -> None:
    server, worker = pair()
    _, other = pair()
    with closing(listen(ANY_PORT, keys=server)) as listener:
        _refused(listener, None, "needs keys, and this worker has none: give keys=")
        elsewhere = WorkerKeys(worker.key, other.server)
        _refused(listener, elsewhere, "has another key than the one that was given for it")
    with closing(listen(ANY_PORT)) as listener:
        _refused(listener, worker, "has no keys, but this worker has: start it with --keys")


def _refused(listener: Listener, keys: WorkerKeys | None, why: str) -> None:
    began = time.monotonic()
    with pytest.raises(errors.Refused, match=why) as caught:
        connect(listener.address, deadline_seconds=DEADLINE_SECONDS, keys=keys)
    assert time.monotonic() - began < DEADLINE_SECONDS / 2, "it tried again"
    assert str(caught.value).startswith(f"the server at {listener.address} ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [tcp, tls])
def test_random_bytes_at_the_port(make: Callable[[TransportLimits], Rig]) -> None:
    with serving(make(SMALL)) as server:
        honest = server.rig.connect()
        for seed in range(50):
            stranger = server.stranger(wire.tcp)
            # Some begin like a hello, to get beyond the first check.
            start = (b"", b"thinwire", wire.hello(), b"GET / HTTP/1.1\r\n\r\n")[seed % 4]
            with suppress(ConnectionError):
                stranger.sendall(start + os.urandom(seed * 40))
            ping(honest)
        ping(server.rig.connect())


@pytest.mark.parametrize("nbytes", [MIB + 1, 1 << 27, 1 << 31, (1 << 32) - 2])
def test_a_huge_declared_size_is_not_believed(nbytes: int) -> None:
    with serving(tcp(SMALL)) as server:
        honest = server.rig.connect()
        before = resident_nbytes()
        stranger = server.stranger()
        stranger.sendall(wire.frame(b"ping"))
        assert wire.read_frame(stranger) == b"ping"
        stranger.sendall(wire.declared(nbytes) + bytes(100))
        assert wire.is_cut(stranger)
        assert server.lost().reason == f"it sends {nbytes} bytes, the limit is {MIB}"
        assert resident_nbytes() - before < MIB
        ping(honest)


def test_a_frame_that_never_ends_is_no_frame_and_ends_its_connection() -> None:
    """However slowly it trickles in: a heartbeat could not get through."""
    limits = replace(SMALL, first_frame_seconds=0.5)
    with serving(tcp(limits)) as server:
        honest = server.rig.connect()
        ping(honest)
        stranger = server.stranger()
        stranger.sendall(wire.declared(1000))
        deadline = Deadline(DEADLINE_SECONDS)
        with pytest.raises(OSError, match=r"reset|pipe"):  # noqa: PT012
            while not deadline.passed():
                stranger.sendall(b"x")
                ping(honest)
                time.sleep(0.01)  # for 1000 bytes that is 10 s
        assert not server.gone, "its frame was not heard"


def test_half_frames_of_many_strangers_take_bounded_memory() -> None:
    """Each may declare a MiB; together they have no more than that."""
    limits = replace(SMALL, max_unadmitted_nbytes=MIB)
    with serving(tcp(limits)) as server:
        honest = server.rig.connect()
        ping(honest)
        before = resident_nbytes()
        for _ in range(100):
            server.stranger().sendall(wire.declared(MIB) + bytes(MIB // 2))
            ping(honest)
        assert resident_nbytes() - before < 8 * MIB


def test_an_honest_worker_is_served_during_a_flood() -> None:
    limits = replace(SMALL, max_messages_per_second=500)
    with serving(tcp(limits)) as server:
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
                wire.frame(b"x") * 1000,
                wire.frame(bytes(MIB)),
                wire.HEARTBEAT * 999,
            )
        ]
        for thread in threads:
            thread.start()
        ping(honest, 100)
        assert "admitted" in server.lost().reason
        for stranger in server.strangers:
            with suppress(OSError):
                stranger.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def test_who_sends_too_much_is_dropped_for_that_alone(caplog: pytest.LogCaptureFixture) -> None:
    with serving(tcp(SMALL)) as server:
        stranger = server.stranger()
        stranger.sendall(wire.HEARTBEAT * 100)
        assert wire.is_cut(stranger)
    reason = "it sent more than 32 messages before it was admitted"
    assert caplog.messages == [f"a connection was dropped: {reason}"]


def test_connections_that_say_nothing_are_ended() -> None:
    limits = TransportLimits(max_peers=8, first_frame_seconds=0.5)
    with serving(tcp(limits)) as server:
        honest = server.rig.connect()
        ping(honest)
        for start in (wire.tcp, wire.shake_hands):
            silent = server.stranger(start)
            assert wire.is_cut(silent)
        for _ in range(40):
            server.stranger(wire.tcp)
        ping(server.rig.connect())
        ping(honest)


@pytest.mark.parametrize("make", [tcp, tls])
@pytest.mark.parametrize("nbytes", [MIB, 100])
def test_what_nobody_reads_waits_in_bounded_memory_and_is_not_lost(
    make: Callable[[TransportLimits], Rig], nbytes: int
) -> None:
    """A server that is busy does not read on, so its peers wait, whoever they are."""
    limits = replace(SMALL, max_unread_nbytes=8 * MIB, max_messages_per_second=1_000_000)
    rig = make(limits)
    connection, _ = rig.introduce()
    before = resident_nbytes()
    sent = 0
    with pytest.raises(errors.TransportTimeout, match="not taken by the server"):  # noqa: PT012
        for _ in range(1_000_000):
            connection.send(b"%d" % sent + bytes(nbytes - 10), deadline_seconds=1.0)
            sent += 1
    assert resident_nbytes() - before < 2 * 8 * MIB
    for n in range(sent):
        found = event(rig.listener)
        assert isinstance(found, Received)
        assert bytes(found.frame).rstrip(b"\0") == b"%d" % n
    rig.close()


def test_what_a_peer_does_not_read_takes_bounded_memory() -> None:
    limits = TransportLimits(max_message_nbytes=MIB, max_unsent_nbytes=32 * MIB)
    rig = tcp(limits)
    stranger = wire.shake_hands(rig.listener.address)
    stranger.sendall(wire.frame(b"hello"))
    received = rig.listener.receive(deadline_seconds=DEADLINE_SECONDS)
    assert isinstance(received, Received)
    before = resident_nbytes()
    for _ in range(400):
        rig.listener.send(received.peer, (b"head", memoryview(bytes(MIB - 4))))
    lost = rig.listener.receive(deadline_seconds=DEADLINE_SECONDS)
    assert isinstance(lost, PeerGone)
    assert "it does not read" in lost.reason
    assert resident_nbytes() - before < limits.max_unsent_nbytes + 8 * MIB
    stranger.close()
    rig.close()
