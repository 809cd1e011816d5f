"""Bad networks between a worker and a server: late, silent, cut and damaged connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.faults.proxy import Proxy
from tests.transports import ANY_PORT, DEADLINE_SECONDS, frame, gone, pair
from thinwire import errors
from thinwire.transport.base import Connection, Listener, PeerGone
from thinwire.transport.peer_limits import TransportLimits
from thinwire.transport.tcp import connect, listen

LIMITS = TransportLimits(first_frame_seconds=1.0)


class Network:
    """A listener, a proxy before it, and workers that connect through the proxy."""

    def __init__(self, *, tls: bool) -> None:
        server, worker = pair()
        self._keys = worker if tls else None
        self.listener: Listener = listen(ANY_PORT, keys=server if tls else None, limits=LIMITS)
        host, _, port = self.listener.address.removeprefix("tcp://").rpartition(":")
        self.proxy = Proxy(host, int(port))
        self._connections: list[Connection] = []

    def connect(self) -> Connection:
        self._connections.append(
            connect(
                self.proxy.address,
                deadline_seconds=DEADLINE_SECONDS,
                keys=self._keys,
                limits=LIMITS,
            )
        )
        self._connections[-1].send(b"hello", deadline_seconds=DEADLINE_SECONDS)
        assert bytes(frame(self.listener).frame) == b"hello"
        return self._connections[-1]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self.proxy.close()
        self.listener.close()


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    made = Network(tls=request.param)
    yield made
    made.close()


def both_know(network: Network, connection: Connection) -> None:
    """The connection is over, and both sides are told."""
    with pytest.raises(errors.TransportClosed):
        connection.receive(deadline_seconds=DEADLINE_SECONDS)
    gone(network.listener)


@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_connection_is_noticed_and_a_new_one_works(network: Network, reset: bool) -> None:
    for _ in range(3):
        connection = network.connect()
        network.proxy.cut(reset=reset)
        both_know(network, connection)


def test_a_delay_changes_nothing_but_the_time(network: Network) -> None:
    connection = network.connect()
    network.proxy.to_server.delay_seconds = network.proxy.to_worker.delay_seconds = 0.01
    for n in range(5):
        connection.send(b"%d" % n * 50_000, deadline_seconds=DEADLINE_SECONDS)
        received = frame(network.listener)
        network.listener.send(received.peer, bytes(received.frame))
        answer = connection.receive(deadline_seconds=DEADLINE_SECONDS)
        assert bytes(answer) == b"%d" % n * 50_000


def test_a_network_that_falls_silent_ends_every_wait_in_time(network: Network) -> None:
    connection = network.connect()
    network.proxy.to_server.paused = network.proxy.to_worker.paused = True
    connection.send(b"push", deadline_seconds=DEADLINE_SECONDS)
    with pytest.raises(errors.TransportTimeout, match="version 1: nothing from the server"):
        connection.receive(deadline_seconds=0.2, what="version 1")
    assert network.listener.receive(deadline_seconds=0.2) is None
    network.proxy.to_server.paused = network.proxy.to_worker.paused = False
    assert bytes(frame(network.listener).frame) == b"push"


def test_a_frame_that_is_cut_in_the_middle_is_no_frame(network: Network) -> None:
    connection = network.connect()
    network.proxy.to_server.cut_at = 50_000
    with suppress(errors.TransportClosed):  # it may notice while it sends
        connection.send(bytes(100_000), deadline_seconds=DEADLINE_SECONDS)
    both_know(network, connection)


@pytest.mark.parametrize("place", [0, 1, 3, 5, 9, 30, 60, 5_000, 16_406, 16_407, 100_030])
def test_tls_delivers_no_flipped_bit(place: int) -> None:
    network = Network(tls=True)
    connection = network.connect()
    network.proxy.to_server.flip_at = place
    connection.send(bytes(100_000), deadline_seconds=DEADLINE_SECONDS)
    found = network.listener.receive(deadline_seconds=0.3)
    assert found is None or isinstance(found, PeerGone)
    network.close()


def test_without_keys_a_flipped_bit_arrives_and_is_for_the_frame_to_notice() -> None:
    network = Network(tls=False)
    connection = network.connect()
    network.proxy.to_server.flip_at = 5_000
    connection.send(bytes(100_000), deadline_seconds=DEADLINE_SECONDS)
    damaged = bytes(frame(network.listener).frame)
    assert len(damaged) == 100_000
    assert damaged.count(b"\x10") == 1
    network.close()


@pytest.mark.parametrize("place", [1, 8, 11, 12, 100, 270, 600, 1000, 1100])
def test_a_handshake_that_is_cut_is_tried_again(place: int) -> None:
    network = Network(tls=True)
    network.proxy.to_server.cut_at = place
    network.connect()
    network.close()
