"""A door that cannot be shut says so, once, and serves on."""

from __future__ import annotations

import socket

import pytest

from thinwire.transport.zeromq.door import Door


def test_a_kernel_without_filters_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    closed = socket.socket()
    closed.close()  # on which every option fails
    door = Door(closed)
    for wanted in (True, False, True):
        door.shut(wanted)
    assert caplog.text.count("socket filters do not work here") == 1


def test_who_is_kept_out_gets_in_when_it_opens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        door = Door(server.dup())
        door.shut(True)
        with pytest.raises(TimeoutError):
            socket.create_connection(server.getsockname(), timeout=0.2)
        door.shut(False)
        socket.create_connection(server.getsockname(), timeout=5).close()
        door.close()
