"""Floods at the port of a real server process: its memory stays bounded, and it serves on."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

from tests.faults import wire
from tests.faults.processes import NAP_SECONDS, ServerProcess
from tests.transports import DEADLINE_SECONDS
from thinwire import errors
from thinwire.transport.base import Connection
from thinwire.transport.peer_limits import MIB, TransportLimits
from thinwire.transport.tcp import connect

LIMITS = TransportLimits(
    max_message_nbytes=MIB,
    max_unread_nbytes=8 * MIB,
    max_unread_total_nbytes=32 * MIB,
    max_unsent_nbytes=8 * MIB,
    max_unread_messages=5000,
)
MOST_NBYTES = 32 * MIB
"""What floods may cost, in all: 8 MiB unread of a peer that was admitted, or 4 of strangers, and
what Python takes for many small frames. What is not read waits at its sender.
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(LIMITS) as process:
        yield process


@pytest.fixture
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
def bounded(server: ServerProcess, honest: Connection, what: str) -> Iterator[None]:
    """The server takes little memory for this, and its honest worker does not notice."""
    server.begin_peak()
    start = time.monotonic()
    yield
    ping(honest)
    peak, seconds = server.peak() - server.first_nbytes, time.monotonic() - start
    print(f"\n{what}: {peak / MIB:.1f} MiB more than at the start, {seconds:.1f} s")
    assert server.is_alive()
    assert peak < MOST_NBYTES


def pour(
    server: ServerProcess,
    data: bytes,
    *,
    times: int,
    start: Callable[[str], socket.socket] = wire.shake_hands,
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
    batch = b"".join(wire.frame(os.urandom(40)) for _ in range(1000))
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
        assert pour(server, wire.frame(b"ping") * 1000, times=100_000) < 100_000


def test_huge_declared_sizes(server: ServerProcess, honest: Connection) -> None:
    with bounded(server, honest, "200 huge declared sizes"):
        poured = sum(
            pour(server, wire.declared((1 << (21 + n % 11)) + n) + bytes(5000), times=1)
            for n in range(200)
        )
    assert poured > 0


def test_half_frames(fresh: tuple[ServerProcess, Connection]) -> None:
    """Of many strangers, who wait for what happens."""
    server, honest = fresh
    with ExitStack() as stack, bounded(server, honest, "200 frames of a MiB that do not end"):
        for _ in range(200):
            stranger = stack.enter_context(wire.shake_hands(server.address))
            with suppress(ConnectionError):  # it may be the one with the most
                stranger.sendall(wire.declared(MIB) + bytes(MIB // 2))
        server.wait_for_log("unadmitted peers sent more than")


def test_heartbeats_without_end(fresh: tuple[ServerProcess, Connection]) -> None:
    server, honest = fresh
    with bounded(server, honest, "heartbeats without end"):
        assert pour(server, wire.HEARTBEAT * 1000, times=100_000) < 100_000
    server.wait_for_log("it sent more than 32 messages before it was admitted")


@pytest.mark.parametrize("nbytes", [0, 5, 11], ids=["no hellos", "half hellos", "all but one byte"])
def test_half_hellos_without_end(server: ServerProcess, honest: Connection, nbytes: int) -> None:
    """From connections that stay: the oldest make place for the newest."""
    what = f"600 connections with {nbytes} bytes of a hello"
    with ExitStack() as stack, bounded(server, honest, what):
        strangers = []
        for _ in range(600):
            strangers.append(stack.enter_context(wire.tcp(server.address)))
            strangers[-1].sendall(wire.hello()[:nbytes])
        with closing(honest_worker(server)):
            pass
        assert wire.is_cut(strangers[0])


def test_a_flood_of_strangers_while_the_server_is_busy(
    fresh: tuple[ServerProcess, Connection],
) -> None:
    server, honest = fresh
    honest.send(b"nap", deadline_seconds=DEADLINE_SECONDS)
    with bounded(server, honest, "tiny frames of a stranger to a busy server"):
        assert 0 < pour(server, wire.frame(b"ping") * 10_000, times=100_000) < 100_000
    server.wait_for_log("before it was admitted|unadmitted peers sent")


def admitted(address: str) -> socket.socket:
    """A connection that is no stranger's any more."""
    peer = wire.shake_hands(address)
    peer.sendall(wire.frame(b"ping 0"))
    wire.read_frame(peer)
    return peer


def test_a_peer_that_listens_and_never_reads(fresh: tuple[ServerProcess, Connection]) -> None:
    server, honest = fresh
    with bounded(server, honest, "a peer that never reads"), admitted(server.address) as peer:
        peer.sendall(wire.frame(b"listen"))
        server.wait_for_loss("it does not read")


def test_a_worker_that_listens_and_never_reads(server: ServerProcess, honest: Connection) -> None:
    """It is told so, after what the kernels held for it."""
    worker = connect(server.address, deadline_seconds=DEADLINE_SECONDS, limits=LIMITS)
    with bounded(server, honest, "a worker that never reads"):
        worker.send(b"listen", deadline_seconds=DEADLINE_SECONDS)
        server.wait_for_loss("it does not read")
    with pytest.raises(errors.TransportClosed):  # noqa: PT012
        while True:
            worker.receive(deadline_seconds=DEADLINE_SECONDS)
    worker.close()


def test_heartbeats_and_resets(server: ServerProcess, honest: Connection) -> None:
    """The server may be about to answer, or to read."""
    with bounded(server, honest, "100 resets with heartbeats unread"):
        for n in range(100):
            with wire.shake_hands(server.address) as stranger:
                wire.resets(stranger)
                stranger.sendall((wire.frame(b"ping") * (n % 10) + wire.HEARTBEAT) * 3)


def block(peer: socket.socket, data: bytes) -> bytes:
    """Send it again and again, until nothing more is taken for a while; returns what is left."""
    peer.settimeout(NAP_SECONDS / 6)
    left = memoryview(b"")
    for _ in range(1_000_000):
        left = left or memoryview(data)
        try:
            left = left[peer.send(left) :]
        except TimeoutError:
            return bytes(left)
    raise AssertionError("all of it was taken")


def test_a_peer_of_a_busy_server_waits_and_is_heard(
    fresh: tuple[ServerProcess, Connection],
) -> None:
    server, honest = fresh
    with admitted(server.address) as peer:
        honest.send(b"nap", deadline_seconds=DEADLINE_SECONDS)
        with bounded(server, honest, "frames of a MiB to a busy server"):
            left = block(peer, wire.frame(b"hush".ljust(MIB)))
            peer.settimeout(DEADLINE_SECONDS)
            peer.sendall(left + wire.frame(b"ping at last"))
            assert wire.read_frame(peer) == b"ping at last"


def test_tiny_frames_to_a_busy_server_wait_until_their_rate_is_seen(
    fresh: tuple[ServerProcess, Connection],
) -> None:
    server, honest = fresh
    with admitted(server.address) as peer:
        honest.send(b"nap", deadline_seconds=DEADLINE_SECONDS)
        with bounded(server, honest, "tiny frames to a busy server"):
            with suppress(ConnectionError):  # it may have been seen already
                block(peer, wire.frame(b"ping") * 1000)
            server.wait_for_loss("it sent more than 10000 messages in a second|it does not read")
