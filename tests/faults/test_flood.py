"""Floods at the port of a real server process: its memory stays bounded, and it serves on."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from tests.faults import zmtp
from tests.faults.processes import ServerProcess
from tests.transports import DEADLINE_SECONDS
from thinwire import errors
from thinwire.transport.base import Connection
from thinwire.transport.peer_limits import MIB, TransportLimits
from thinwire.transport.zeromq import connect

LIMITS = TransportLimits(
    max_message_nbytes=MIB,
    max_unread_nbytes=8 * MIB,
    max_unread_total_nbytes=32 * MIB,
    max_unsent_nbytes=8 * MIB,
)
MOST_NBYTES = 192 * MIB
"""What floods of strangers may cost, in all: the limits above, and what comes in until they are
enforced. The latter depends on how busy the machine is. Without limits it is gigabytes in seconds.
"""

PEER_NBYTES = 512 * MIB
"""What a flood of a peer that was admitted may cost: it may send much more before it is cut."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(LIMITS) as process:
        yield process


@pytest.fixture(scope="module")
def honest(server: ServerProcess) -> Iterator[Connection]:
    with closing(honest_worker(server)) as connection:
        yield connection


@pytest.fixture
def fresh() -> Iterator[tuple[ServerProcess, Connection]]:
    """A server that still has nothing to throw away and has logged nothing, and its worker."""
    with ServerProcess(LIMITS) as process, closing(honest_worker(process)) as connection:
        yield process, connection


def honest_worker(server: ServerProcess) -> Connection:
    connection = connect(server.address, deadline_seconds=DEADLINE_SECONDS, limits=LIMITS)
    ping(connection)
    return connection


def ping(connection: Connection) -> None:
    for n in range(10):
        connection.send(b"ping %d" % n, deadline_seconds=DEADLINE_SECONDS)
        assert connection.receive(deadline_seconds=DEADLINE_SECONDS) == b"ping %d" % n


@contextmanager
def bounded(
    server: ServerProcess, honest: Connection, what: str, most_nbytes: int = MOST_NBYTES
) -> Iterator[None]:
    """The server takes little memory for this, and its honest worker does not notice."""
    server.begin_peak()
    start = time.monotonic()
    yield
    ping(honest)
    peak, seconds = server.peak() - server.first_nbytes, time.monotonic() - start
    print(f"\n{what}: {peak / MIB:.1f} MiB more than at the start, {seconds:.1f} s")
    assert server.is_alive()
    assert peak < most_nbytes


def pour(
    server: ServerProcess,
    data: bytes,
    *,
    times: int,
    start: Callable[[str], socket.socket] = zmtp.shake_hands,
) -> int:
    """Send it again and again on one connection, until that is cut; returns how often it went.

    Not once, if a server that has many strangers does not shake hands with another one.
    """
    sent = 0
    with suppress(OSError), start(server.address) as stranger:
        while sent < times:
            stranger.sendall(data)
            sent += 1
    return sent


def flood_with_bad_frames(server: ServerProcess, count: int) -> int:
    """At least ``count`` frames of random bytes; returns on how many connections."""
    batch = b"".join(zmtp.part(os.urandom(40)) for _ in range(1000))
    connections = sent = 0
    while sent < count:
        with suppress(OSError):
            sent += 1000 * pour(server, batch, times=20)
        connections += 1
    return connections


def test_bad_frames(server: ServerProcess, honest: Connection) -> None:
    lines = len(server.log)
    with bounded(server, honest, "100,000 bad frames"):
        connections = flood_with_bad_frames(server, 100_000)
    assert connections >= 5
    assert 1 <= len(server.log) - lines < 60, "a line for each, but not in a flood"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_bad_frames(server: ServerProcess, honest: Connection) -> None:
    with bounded(server, honest, "1,000,000 bad frames"):
        flood_with_bad_frames(server, 1_000_000)


def test_frames_of_a_valid_kind_above_the_rate(server: ServerProcess, honest: Connection) -> None:
    with bounded(server, honest, "tiny frames without end"):
        assert pour(server, zmtp.part(b"ping") * 1000, times=100_000) < 100_000


def test_huge_declared_sizes(server: ServerProcess, honest: Connection) -> None:
    with bounded(server, honest, "200 huge declared sizes"):
        poured = sum(
            pour(server, zmtp.declared(1 << (21 + n % 42)) + bytes(5000), times=1)
            for n in range(200)
        )
    assert poured > 0


def test_messages_of_5000_parts(server: ServerProcess, honest: Connection) -> None:
    data = zmtp.part(b"x", more=True) * 4999 + zmtp.part(b"x")
    with bounded(server, honest, "50 messages of 5000 parts"):
        poured = sum(pour(server, data, times=1) for _ in range(50))
    assert poured > 0
    server.wait_for_loss("5000 parts")


@pytest.mark.parametrize("nbytes", [1, 200, 10_000])
def test_a_message_of_endless_parts(server: ServerProcess, honest: Connection, nbytes: int) -> None:
    data = zmtp.part(bytes(nbytes), more=True) * (1 + 100_000 // nbytes)
    with bounded(server, honest, f"endless parts of {nbytes} bytes"):
        assert pour(server, data, times=1_000_000) < 1_000_000


def test_a_flood_of_strangers_while_the_server_is_busy(
    fresh: tuple[ServerProcess, Connection],
) -> None:
    server, honest = fresh
    honest.send(b"nap", deadline_seconds=DEADLINE_SECONDS)
    with bounded(server, honest, "tiny frames of a stranger to a busy server"):
        assert 0 < pour(server, zmtp.part(b"ping") * 10_000, times=100_000) < 100_000
    server.wait_for_log("before it was admitted|unadmitted peers sent|faster than it is read")


def test_a_routing_id_that_is_in_use(server: ServerProcess, honest: Connection) -> None:
    """libzmq alone never reads nor frees what the second of two such peers sends."""
    with bounded(server, honest, "100 MiB under one routing id"):
        poured = 0
        for _ in range(20):
            poured += pour(
                server,
                zmtp.part(b"ping".ljust(MIB)),
                times=5,
                start=lambda address: zmtp.shake_hands(address, routing_id=b"x"),
            )
            ping(honest)
    assert poured > 0


def admitted(address: str) -> socket.socket:
    """A connection that is no stranger's any more."""
    peer = zmtp.shake_hands(address)
    peer.sendall(zmtp.part(b"ping 0"))
    zmtp.read_part(peer)
    return peer


def test_a_peer_that_listens_and_never_reads(fresh: tuple[ServerProcess, Connection]) -> None:
    server, honest = fresh
    with bounded(server, honest, "a peer that never reads"), admitted(server.address) as peer:
        peer.sendall(zmtp.part(b"listen"))
        server.wait_for_loss("it does not read")


def test_a_worker_that_listens_and_never_reads(server: ServerProcess, honest: Connection) -> None:
    """Its libzmq reads, so that for the kernel all is well; the program does not."""
    worker = connect(server.address, deadline_seconds=DEADLINE_SECONDS, limits=LIMITS)
    with bounded(server, honest, "a worker that never reads"):
        worker.send(b"listen", deadline_seconds=DEADLINE_SECONDS)
        server.wait_for_loss("it does not read")
    with pytest.raises(errors.TransportClosed):  # noqa: PT012
        while True:
            worker.receive(deadline_seconds=DEADLINE_SECONDS)
    worker.close()


def test_pings_without_end_and_resets(server: ServerProcess, honest: Connection) -> None:
    """Each would have ended the process while ZeroMQ had a limit: see port.py."""
    ping_command = b"\x04\x07\x04PING\0\0"
    resets = 0
    with bounded(server, honest, "100 resets with PINGs unread"):
        for _ in range(100):
            # A server that throws away what earlier strangers sent may cut this one as well.
            with suppress(ConnectionError), zmtp.shake_hands(server.address) as stranger:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                stranger.sendall((zmtp.part(b"ping") * 10 + ping_command) * 3)
                resets += 1
    assert resets > 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (zmtp.part(b"ping".ljust(MIB)), "it sends on while|faster than it is read"),
        (zmtp.part(b"ping") * 10_000, "it sent more than|it sends on while|faster than it is read"),
    ],
    ids=["1 MiB", "tiny"],
)
def test_a_flood_while_the_server_is_busy(
    fresh: tuple[ServerProcess, Connection], data: bytes, reason: str
) -> None:
    server, honest = fresh
    peer = admitted(server.address)
    honest.send(b"nap", deadline_seconds=DEADLINE_SECONDS)
    with bounded(server, honest, "frames of a peer to a busy server", PEER_NBYTES):
        assert 0 < pour(server, data, times=10_000, start=lambda address: peer) < 10_000
    server.wait_for_loss(reason)
