"""A worker that waits for a server says so."""

from __future__ import annotations

import logging
import re
import socket
import subprocess
import sys

import pytest

import thinwire as tw
from tests.server.processes import free_address
from tests.server.servers import network, plain_sgd

SCRIPT = """
import sys
import torch
import thinwire as tw

net = torch.nn.Linear(3, 3)
client = tw.Client([sys.argv[1]], tw.dense(), rank=0, workers=1, deadline_seconds=6.0)
try:
    client.attach(net, torch.optim.SGD(net.parameters(), lr=0.1))
except tw.TransportTimeout:
    print("gave up")
"""


def waited_for(address: str, caplog: pytest.LogCaptureFixture, *, seconds: float) -> list[str]:
    """The warnings of a worker that no server lets in."""
    net = network()
    client = tw.Client([address], tw.dense(), rank=0, workers=1, deadline_seconds=seconds)
    with caplog.at_level(logging.WARNING), pytest.raises(tw.TransportTimeout):
        client.attach(net, plain_sgd(net))
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.timeout(60)
def test_a_worker_without_a_server_says_what_it_waits_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = free_address()
    assert waited_for(address, caplog, seconds=6.0) == [
        f"waiting for {address}: no server answered so far; is it running, and is the address "
        "right? giving up after 6 s"
    ]


@pytest.mark.timeout(60)
def test_what_listens_but_is_no_server_is_named_as_such(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        [text] = waited_for(address, caplog, seconds=6.0)
    assert re.fullmatch(
        rf"waiting for {address}: nothing let this worker in so far; is it a Thinwire server, and "
        r"is it full\? giving up after 6 s",
        text,
    )


def test_a_short_wait_needs_no_words(caplog: pytest.LogCaptureFixture) -> None:
    assert waited_for(free_address(), caplog, seconds=0.5) == []


@pytest.mark.timeout(60)
def test_a_plain_script_shows_it_on_stderr() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, free_address()], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "gave up\n"
    assert done.stderr.startswith("waiting for tcp://127.0.0.1:")
    assert done.stderr.count("\n") == 1
