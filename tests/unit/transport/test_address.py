"""transport/address.py, and what connect and listen say about addresses."""

from __future__ import annotations

import pytest

from tests.transports import pair
from thinwire.address import is_loopback
from thinwire.errors import ConfigError, TransportError, TransportTimeout
from thinwire.transport.tcp import connect, listen


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_loopback(host: str) -> None:
    assert is_loopback(f"tcp://{host}:5555")


@pytest.mark.parametrize(
    "host", ["*", "0.0.0.0", "192.0.2.1", "[::]", "127.0.0.1.example", "localhost.example", "1"]
)
def test_not_loopback_needs_keys_or_a_word(host: str) -> None:
    address = f"tcp://{host}:5555"
    assert not is_loopback(address)
    sentence = "is not a loopback address, so keys are required"
    with pytest.raises(ConfigError, match=f"{sentence}.*; give keys=..., or insecure=True$"):
        listen(address)
    with pytest.raises(ConfigError, match=f"{sentence}.*; give keys=..., or insecure=True$"):
        connect(address, deadline_seconds=1.0)


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1:1", "tcp://:1", "tcp://a", "tcp://a:x", "ipc://a", "tcp://a:65536"]
)
def test_an_address_is_tcp_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="expected tcp://HOST:PORT"):
        listen(address, insecure=True)
    with pytest.raises(ConfigError, match="expected tcp://HOST:PORT"):
        connect(address, deadline_seconds=1.0, insecure=True)


def test_a_server_picks_a_port_but_a_worker_must_know_it() -> None:
    listener = listen("tcp://127.0.0.1:0")
    assert not listener.address.endswith(":0")
    listener.close()
    with pytest.raises(ConfigError, match="a port from 1 to 65535"):
        connect("tcp://127.0.0.1:0", deadline_seconds=1.0)


def test_a_taken_address_is_one_sentence() -> None:
    listener = listen("tcp://127.0.0.1:0")
    with pytest.raises(TransportError, match=f"cannot listen at {listener.address}: Address"):
        listen(listener.address)
    keys, _ = pair()
    with pytest.raises(TransportError, match="cannot listen"):  # and leaves no thread behind
        listen(listener.address, keys=keys)
    listener.close()


def test_no_server_is_one_sentence() -> None:
    listener = listen("tcp://127.0.0.1:0")
    listener.close()
    with pytest.raises(TransportTimeout) as caught:
        connect(listener.address, deadline_seconds=0.3)
    assert str(caught.value) == (
        f"no server answered at {listener.address} within 0.3 s: "
        "is it running, and is the address right?"
    )


def test_a_worker_may_be_there_before_the_server() -> None:
    listener = listen("tcp://127.0.0.1:0")
    listener.close()
    with pytest.raises(TransportTimeout):
        connect(listener.address, deadline_seconds=0.2)
    listener = listen(listener.address)
    connect(listener.address, deadline_seconds=30.0).close()
    listener.close()
