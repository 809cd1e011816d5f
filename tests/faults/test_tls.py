"""What is not TLS, or is broken TLS, at a port with keys: no frame comes of it, and others work."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.faults import records, wire
from tests.faults.records import Records, sends_all
from tests.transports import ANY_PORT, DEADLINE_SECONDS, pair
from thinwire import errors
from thinwire.keys.settings import ServerKeys, WorkerKeys, own_certificate
from thinwire.transport.base import Connection, PeerGone, Received
from thinwire.transport.peer_limits import TransportLimits
from thinwire.transport.tcp import connect, listen

LIMITS = TransportLimits(first_frame_seconds=1.0, heartbeat_seconds=0.2, silence_seconds=1.0)


class Echo:
    """A listener with keys that sends back what it hears, and an honest worker."""

    def __init__(self, server: ServerKeys, worker: WorkerKeys) -> None:
        self.keys = worker
        self.listener = listen(ANY_PORT, keys=server, limits=LIMITS)
        self.heard: list[bytes] = []
        self.gone: list[str] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def address(self) -> str:
        return self.listener.address

    def _serve(self) -> None:
        with suppress(errors.TransportClosed):
            while True:
                found = self.listener.receive(deadline_seconds=DEADLINE_SECONDS)
                if isinstance(found, Received):
                    self.heard.append(bytes(found.frame))
                    self.listener.admit(found.peer)
                    self.listener.send(found.peer, bytes(found.frame))
                elif isinstance(found, PeerGone):
                    self.gone.append(found.reason)

    def connect(self) -> Connection:
        return connect(
            self.address, deadline_seconds=DEADLINE_SECONDS, keys=self.keys, limits=LIMITS
        )

    def close(self) -> None:
        self.listener.close()
        self._thread.join()


@pytest.fixture
def keys(tmp_path: Path) -> tuple[ServerKeys, WorkerKeys]:
    return pair(tmp_path)


@pytest.fixture
def echo(keys: tuple[ServerKeys, WorkerKeys]) -> Iterator[Echo]:
    made = Echo(*keys)
    yield made
    made.close()


@pytest.fixture
def broken(echo: Echo, tmp_path: Path) -> Iterator[Records]:
    """A worker that was let in, and is about to do something else."""
    with closing(Records(echo.address, echo.keys, tmp_path)) as made:
        made.socket.sendall(made.data(wire.frame(b"a stranger")))
        wait_for(lambda: b"a stranger" in echo.heard)
        echo.heard.clear()
        yield made


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def ping(connection: Connection) -> None:
    connection.send(b"ping", deadline_seconds=DEADLINE_SECONDS)
    assert bytes(connection.receive(deadline_seconds=DEADLINE_SECONDS)) == b"ping"


def an_honest_worker_is_served(echo: Echo) -> None:
    with closing(echo.connect()) as honest:
        ping(honest)


def test_slow_handshakes_are_ended_and_nobody_waits_for_them(echo: Echo) -> None:
    hello = wire.hello(wire.TLS, own_certificate(Path(echo.keys.key)))
    first = records.client_hello()
    slow = [wire.tcp(echo.address) for _ in range(30)]
    for n, client in enumerate(slow):
        client.sendall(hello[: len(hello) * n // 10] if n < 10 else hello)
    trickling = slow[10:]
    with closing(echo.connect()) as honest:
        for byte in first:
            trickling = [client for client in trickling if sends_all(client, bytes([byte]))]
            ping(honest)
            time.sleep(0.005)  # for all of them that is longer than a first frame may take
        assert not trickling, "bytes that trickle in kept them alive"
        for client in slow:
            assert wire.is_cut(client)
            client.close()
        ping(honest)
    assert set(echo.heard) == {b"ping"}


@pytest.mark.parametrize("kept", [0, 1, 5, 6, 20, -1])
def test_a_truncated_record_is_no_frame(echo: Echo, broken: Records, kept: int) -> None:
    record = broken.data(wire.frame(b"never heard"))
    broken.socket.sendall(record[:kept])
    broken.socket.shutdown(socket.SHUT_WR)
    assert wire.is_cut(broken.socket)
    an_honest_worker_is_served(echo)
    assert echo.heard == [b"ping"]
    assert echo.gone[0] == "the connection ended"


def test_a_truncated_record_that_stays_so_ends_when_it_is_silent(
    echo: Echo, broken: Records
) -> None:
    broken.socket.sendall(broken.data(wire.frame(b"never heard"))[:-1])
    assert wire.is_cut(broken.socket)
    assert echo.heard == []
    wait_for(lambda: echo.gone == ["nothing came from it for 1 s"])


GARBAGE = {
    "random bytes": os.urandom(1000),
    "zeros": bytes(1000),
    "plain frames": wire.frame(b"never heard") * 10,
    "a hello": wire.hello(),
    "a record that decrypts to nothing": b"\x17\x03\x03\x00\x40" + bytes(64),
    "a record that is too long": b"\x17\x03\x03\xff\xff" + bytes(1000),
    "an alert in clear": b"\x15\x03\x03\x00\x02\x02\x28",
    "a second handshake in clear": records.client_hello(),
    "changes of cipher": b"\x14\x03\x03\x00\x01\x01" * 100,
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_in_place_of_records_ends_the_connection(
    echo: Echo, broken: Records, name: str
) -> None:
    broken.socket.sendall(GARBAGE[name])
    sends_all(broken.socket, broken.data(wire.frame(b"never heard")))
    assert wire.is_cut(broken.socket)
    an_honest_worker_is_served(echo)
    assert echo.heard == [b"ping"]
    assert len(echo.gone) >= 1


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_in_place_of_a_handshake_ends_the_connection(echo: Echo, name: str) -> None:
    hello = wire.hello(wire.TLS, own_certificate(Path(echo.keys.key)))
    with wire.tcp(echo.address) as client:
        client.sendall(hello + GARBAGE[name])
        assert wire.is_cut(client)
    an_honest_worker_is_served(echo)
    assert echo.heard == [b"ping"]


@pytest.mark.parametrize(
    "kind", [records.HANDSHAKE, records.ALERT, 20, 99], ids=["handshake", "alert", "20", "99"]
)
def test_records_of_other_kinds_are_no_frames(echo: Echo, broken: Records, kind: int) -> None:
    """Encrypted as they should be: also a second handshake, which TLS 1.3 has none of."""
    data = records.client_hello()[5:] if kind == records.HANDSHAKE else b"\x02\x28"
    broken.socket.sendall(broken.record(data, kind))
    sends_all(broken.socket, broken.data(wire.frame(b"never heard")))
    assert wire.is_cut(broken.socket)
    an_honest_worker_is_served(echo)
    assert echo.heard == [b"ping"]


def test_new_keys_in_the_middle_change_nothing(echo: Echo, broken: Records) -> None:
    for message in (records.UPDATE_KEY, records.UPDATE_BOTH_KEYS):
        broken.socket.sendall(broken.new_key(message) + broken.data(wire.frame(b"heard")))
    wait_for(lambda: echo.heard == [b"heard", b"heard"])


@pytest.mark.parametrize("both", [False, True])
def test_new_keys_without_end_disturb_nobody(echo: Echo, broken: Records, both: bool) -> None:
    """Of a worker that was let in; it reads no answers."""
    message = records.UPDATE_BOTH_KEYS if both else records.UPDATE_KEY
    flood = b"".join(broken.new_key(message) for _ in range(30_000))
    sender = threading.Thread(target=sends_all, args=(broken.socket, flood))
    sender.start()
    with closing(echo.connect()) as honest:
        while sender.is_alive():
            began = time.monotonic()
            ping(honest)
            assert time.monotonic() - began < DEADLINE_SECONDS / 3, "it had to wait"
        sender.join()
        ping(honest)
    assert wire.is_cut(broken.socket), "it was silent, for all that it sent"
    assert set(echo.heard) == {b"ping"}


def test_empty_records_without_end_disturb_nobody(echo: Echo, broken: Records) -> None:
    flood = b"".join(broken.data(b"") for _ in range(30_000))
    sends_all(broken.socket, flood)
    an_honest_worker_is_served(echo)
    assert wire.is_cut(broken.socket)
    assert echo.heard == [b"ping"]


def test_a_frame_in_records_of_one_byte_is_a_frame(echo: Echo, broken: Records) -> None:
    data = wire.frame(b"bit by bit")
    broken.socket.sendall(b"".join(broken.data(data[n : n + 1]) for n in range(len(data))))
    wait_for(lambda: echo.heard == [b"bit by bit"])


def test_no_flood_of_new_keys_makes_others_wait(
    keys: tuple[ServerKeys, WorkerKeys], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes faster than it can be looked at."""
    monkeypatch.setattr("tests.faults.test_tls.LIMITS", TransportLimits())  # making it takes long
    with closing(Echo(*keys)) as echo, closing(Records(echo.address, echo.keys, tmp_path)) as one:
        flood = b"".join(one.new_key() for _ in range(150_000))
        with closing(echo.connect()) as honest:
            sender = threading.Thread(target=sends_all, args=(one.socket, flood))
            sender.start()
            longest = 0.0
            while sender.is_alive():
                began = time.monotonic()
                ping(honest)
                longest = max(longest, time.monotonic() - began)
            sender.join()
        assert longest < 1.0
