"""Frozen processes and dead networks: noticed on both sides in time, and not before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.faults.processes import ServerProcess, WorkerProcess
from tests.faults.proxy import Proxy
from tests.slow import first
from tests.transports import ANY_PORT, DEADLINE_SECONDS, Rig, frame, gone, pair, tcp, tls
from thinwire import errors
from thinwire.transport.base import Connection, Listener
from thinwire.transport.peer_limits import DEFAULT_LIMITS, MIB, TransportLimits
from thinwire.transport.tcp import connect, listen

HASTY = TransportLimits(heartbeat_seconds=0.2, silence_seconds=1.0)


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = listen(ANY_PORT, limits=HASTY)
    yield made
    made.close()


def test_a_frozen_worker_is_noticed(listener: Listener) -> None:
    with WorkerProcess(listener.address, HASTY) as worker:
        peer = frame(listener).peer
        assert listener.receive(deadline_seconds=3.0) is None, "it was silent, but not frozen"
        worker.freeze()
        assert gone(listener).peer == peer
        worker.thaw()


def test_a_frozen_worker_that_has_much_to_read_is_noticed(listener: Listener) -> None:
    with WorkerProcess(listener.address, HASTY) as worker:
        peer = frame(listener).peer
        worker.freeze()
        listener.send(peer, bytes(32 * MIB))
        assert gone(listener).peer == peer


def test_a_frozen_server_is_noticed_and_serves_when_it_is_back() -> None:
    """Also by a worker whose bytes it does not take, in the midst of a frame."""
    with ServerProcess(HASTY) as server:
        for nbytes in (10, 32 * MIB):
            connection = connect(server.address, deadline_seconds=DEADLINE_SECONDS, limits=HASTY)
            say_ping(connection)
            server.freeze()
            with ThreadPoolExecutor(1) as threads:
                data = b"ping".ljust(nbytes)
                sent = threads.submit(connection.send, data, deadline_seconds=DEADLINE_SECONDS)
                with pytest.raises(errors.TransportClosed, match="nothing came from it for 1 s"):
                    connection.receive(deadline_seconds=DEADLINE_SECONDS)
                assert nbytes == 10 or isinstance(sent.exception(), errors.TransportClosed)
            server.thaw()
            connection.close()
        again = connect(server.address, deadline_seconds=DEADLINE_SECONDS, limits=HASTY)
        say_ping(again)
        again.close()


@pytest.mark.parametrize("make", [tcp, tls])
def test_a_worker_that_waits_for_a_busy_server_is_not_given_up_and_does_not_give_up(
    make: Callable[[TransportLimits], Rig],
) -> None:
    """The server reads no more of it, not even heartbeats, and is there all the same."""
    rig = make(replace(HASTY, max_unread_messages=2))
    connection, _ = rig.introduce()
    sent = 0
    with pytest.raises(errors.TransportTimeout):  # noqa: PT012
        while sent < 1000:
            connection.send(bytes(MIB), deadline_seconds=0.3)
            sent += 1
    with pytest.raises(errors.TransportTimeout):
        connection.receive(deadline_seconds=3 * HASTY.silence_seconds)
    for _ in range(sent):
        assert len(frame(rig.listener).frame) == MIB
    rig.close()


def test_a_network_that_is_gone_is_noticed_on_both_sides(listener: Listener) -> None:
    host, _, port = listener.address.removeprefix("tcp://").rpartition(":")
    with Proxy(host, int(port)) as proxy:
        connection = connect(proxy.address, deadline_seconds=DEADLINE_SECONDS, limits=HASTY)
        connection.send(b"hello", deadline_seconds=DEADLINE_SECONDS)
        peer = frame(listener).peer
        proxy.to_server.paused = proxy.to_worker.paused = True
        assert gone(listener).peer == peer
        with pytest.raises(errors.TransportClosed):
            connection.receive(deadline_seconds=DEADLINE_SECONDS)
        connection.close()


@pytest.mark.parametrize("place", first([60, 1, 3, 9, 30, 5_000, 100_030]))
def test_a_changed_byte_under_tls_ends_the_connection(place: int) -> None:
    """At once if it does not decrypt; if it is the length that was changed, by the heartbeats."""
    server, worker = pair()
    listener = listen(ANY_PORT, keys=server, limits=HASTY)
    host, _, port = listener.address.removeprefix("tcp://").rpartition(":")
    with Proxy(host, int(port)) as proxy:
        connection = connect(
            proxy.address,
            deadline_seconds=DEADLINE_SECONDS,
            keys=worker,
            limits=HASTY,
        )
        connection.send(b"hello", deadline_seconds=DEADLINE_SECONDS)
        peer = frame(listener).peer
        proxy.to_server.flip_at = place
        connection.send(bytes(100_000), deadline_seconds=DEADLINE_SECONDS)
        assert gone(listener).peer == peer
        connection.close()
    listener.close()


def test_five_seconds_of_frost_break_nothing_by_default() -> None:
    with ServerProcess(DEFAULT_LIMITS) as server:
        connection = connect(server.address, deadline_seconds=DEADLINE_SECONDS)
        say_ping(connection)
        server.freeze()
        time.sleep(5.5)
        server.thaw()
        say_ping(connection)
        assert not server.gone
        connection.close()


def test_the_defaults_bear_half_a_minute_at_most() -> None:
    worst = DEFAULT_LIMITS.heartbeat_seconds + DEFAULT_LIMITS.silence_seconds
    assert 15.0 <= DEFAULT_LIMITS.silence_seconds < worst <= 30.0


def say_ping(connection: Connection) -> None:
    connection.send(b"ping", deadline_seconds=DEADLINE_SECONDS)
    assert bytes(connection.receive(deadline_seconds=DEADLINE_SECONDS)) == b"ping"
