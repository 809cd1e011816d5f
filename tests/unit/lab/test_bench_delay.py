"""Packets between hosts are late by what was asked for, and by hardly more."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.unit.lab.commands import output_of
from thinwire.errors import ConfigError, ThinwireError
from thinwire_lab.bench.delay import DelayLine
from thinwire_lab.bench.hosts import Host, hosts

DEADLINE = 60.0
ROUND_TRIP = 0.04
needs_rights = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and tc"
)
ANSWER = """
import socket
with socket.create_server(("", 5000)) as server:
    print("ready", flush=True)
    peer = server.accept()[0]
    with peer:
        while data := peer.recv(1 << 20):
            if len(data) == 1:
                peer.sendall(data)
"""
ASK = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000), timeout=20) as peer:
    times = []
    for _ in range(20):
        began = time.perf_counter()
        peer.sendall(b"x")
        peer.recv(1)
        times.append(time.perf_counter() - began)
    print(min(times), sorted(times)[len(times) // 2])
    began, block = time.perf_counter(), bytes(200_000)
    count = int(sys.argv[2])
    for _ in range(count):
        peer.sendall(block)
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
    print(8 * count * len(block) / (time.perf_counter() - began))
"""


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), max_size=20), st.floats(0, 10))
def test_frames_come_out_in_order_once_they_are_due(
    added: list[tuple[float, int]], now: float
) -> None:
    line = DelayLine(2.0)
    began = sorted(time for time, _ in added)
    frames = [bytes(size) for _, size in added]
    for number, (time, frame) in enumerate(zip(began, frames, strict=True)):
        line.add(time, number, frame)
    early = list(line.due(now))
    assert early == list(enumerate(frames))[: sum(time + 2.0 <= now for time in began)]
    assert early + list(line.due(100.0)) == list(enumerate(frames))


def test_it_is_known_how_long_nothing_is_due() -> None:
    line = DelayLine(2.0)
    line.add(10.0, 0, b"x")
    line.add(11.0, 0, b"y")
    assert line.wait_seconds(11.5) == 0.5
    assert line.wait_seconds(12.5) == 0.0
    assert list(line.due(12.5)) == [(0, b"x")]
    assert line.wait_seconds(12.5) == 0.5


def test_what_does_not_fit_is_dropped_and_there_is_room_again() -> None:
    line = DelayLine(1.0, most_nbytes=10)
    for frame in (b"123456", b"too large", b"7890", b"1"):
        line.add(0.0, 0, frame)
    assert [frame for _, frame in line.due(1.0)] == [b"123456", b"7890"]
    line.add(1.0, 0, b"0123456789")
    assert [frame for _, frame in line.due(2.0)] == [b"0123456789"]


@needs_rights
def test_a_round_trip_takes_the_delay_and_a_link_keeps_its_rate() -> None:
    with hosts(3, delay_seconds=ROUND_TRIP) as made:
        made.limit(10**8)
        best, median, rate = measure(made.hosts[0], made.hosts[2], nbytes=20_000_000)
    assert ROUND_TRIP <= best < 1.1 * ROUND_TRIP
    assert median < 1.5 * ROUND_TRIP, "the machine may be busy"
    assert 5e7 < rate < 1e8


@needs_rights
def test_without_a_limit_the_delay_alone_is_there() -> None:
    with hosts(2, delay_seconds=ROUND_TRIP) as made:
        best, _, rate = measure(made.hosts[1], made.hosts[0], nbytes=40_000_000)
    assert ROUND_TRIP <= best < 1.1 * ROUND_TRIP
    assert rate > 1e8


def measure(client: Host, server: Host, *, nbytes: int) -> tuple[float, float, float]:
    """Best and median seconds of a round trip, and bits per second one way."""
    with answering(server):
        blocks = str(nbytes // 200_000)
        ask = (sys.executable, "-c", ASK, server.address, blocks)
        best, median, rate = output_of(*client.prefix, *ask).split()
    return float(best), float(median), float(rate)


@contextmanager
def answering(host: Host) -> Iterator[None]:
    process = subprocess.Popen(
        [*host.prefix, sys.executable, "-c", ANSWER], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE)


@needs_rights
def test_the_switch_is_gone_with_its_hosts() -> None:
    with hosts(2, delay_seconds=ROUND_TRIP) as made:
        pid = switch_of(made.hosts[0])
    assert not Path(f"/proc/{pid}").exists()


@needs_rights
def test_an_error_says_that_the_switch_has_ended() -> None:
    with pytest.raises(ThinwireError, match="nothing forwards packets: exit code -9"):
        train_until_the_switch_is_killed()


def train_until_the_switch_is_killed() -> None:
    with hosts(2, delay_seconds=ROUND_TRIP) as made:
        pid = switch_of(made.hosts[0])
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        raise TimeoutError("of the training")


def switch_of(host: Host) -> int:
    return int(output_of("ip", "netns", "pids", host.name.rpartition("-")[0]))


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_impossible_delays_are_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="delay_seconds"), hosts(2, delay_seconds=seconds):
        pass
