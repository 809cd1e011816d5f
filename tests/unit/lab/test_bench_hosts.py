"""Hosts have the rate that was asked for, and are gone afterwards, whatever happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.unit.lab.commands import output_of
from thinwire.errors import ConfigError
from thinwire_lab.bench import hosts as bench_hosts
from thinwire_lab.bench.hosts import burst_nbytes, hosts

DEADLINE = 60.0
needs_rights = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and tc"
)
WAIT = """
import signal
from thinwire_lab.bench.hosts import hosts
signal.signal(signal.SIGINT, signal.default_int_handler)
with hosts(1) as made:
    print(made.hosts[0].name, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize(
    ("rate", "nbytes"), [(10**8, 16_000), (10**9, 62_500), (10**10, 4_000_000)]
)
def test_bursts_are_strict(rate: int, nbytes: int) -> None:
    assert burst_nbytes(rate) == nbytes


@needs_rights
def test_the_rate_can_be_changed_and_taken_away() -> None:
    with hosts(2) as made:
        for rate, shown in ((10**8, "rate 100Mbit"), (10**9, "rate 1Gbit"), (None, "noqueue")):
            made.limit(rate)
            for host in made.hosts:
                show = ("tc", "qdisc", "show", "dev", host.interface)
                assert shown in output_of(*host.prefix, *show)


@needs_rights
def test_packets_fit_into_the_burst_at_1_gbit() -> None:
    """Else the shaper would cut them, at the cost of those who send much."""
    headers = 66  # of Ethernet, IP and TCP, for each of the frames that a packet becomes
    with hosts(1) as made:
        shown = output_of(
            *made.hosts[0].prefix, "ip", "-d", "link", "show", made.hosts[0].interface
        )
    words = shown.split()
    largest = int(words[words.index("gso_max_size") + 1])
    assert largest + headers * (largest // 1448 + 1) < burst_nbytes(10**9)


@needs_rights
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_a_signal(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", WAIT], stdout=subprocess.PIPE, text=True)
    name = read_line(process)
    assert name in output_of("ip", "netns", "list")
    process.send_signal(number)
    process.communicate(timeout=DEADLINE)
    assert name not in output_of("ip", "netns", "list")


@needs_rights
def test_what_a_killed_run_left_is_removed_by_the_next() -> None:
    process = subprocess.Popen([sys.executable, "-c", WAIT], stdout=subprocess.PIPE, text=True)
    name = read_line(process)
    with hosts(1):
        assert name in output_of("ip", "netns", "list"), "those of a live run stay"
    left = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "1000"])
    process.kill()
    process.communicate(timeout=DEADLINE)
    assert name in output_of("ip", "netns", "list")
    with hosts(1):
        assert name not in output_of("ip", "netns", "list")
    assert left.wait(timeout=DEADLINE) == -signal.SIGKILL


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_missing_program_or_right_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: f"/sbin/{name}")
    with pytest.raises(ConfigError, match="needs root"), hosts(1):
        pass
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="ip and tc"), hosts(1):
        pass


def test_a_refused_command_says_what_may_be_missing() -> None:
    refuse = "echo RTNETLINK answers: Operation not permitted >&2; exit 2"
    with pytest.raises(
        ConfigError,
        match=r"Operation not permitted; are CAP_NET_ADMIN and CAP_SYS_ADMIN missing\?$",
    ):
        bench_hosts._run("sh", "-c", refuse)
