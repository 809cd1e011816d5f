"""Hosts of their own on this machine: network namespaces on one bridge, gone with the test.

Nothing outside of them is touched: the bridge has a namespace, too, and no way out of it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

INTERFACE = "eth0"

MTU_NBYTES = 9000
"""Large packets, so that headers are a small part of the traffic: see the test that counts it."""


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace, in which programs see an interface ``eth0`` with an address of its own."""

    name: str
    address: str
    switch: str
    port: str
    _started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a program on this host, at the top of the checkout."""
        own = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", **(env or {})}
        program = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command],
            cwd=ROOT,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(program)
        return program

    def cut(self) -> None:
        """Let nothing in or out any more, without a word: as when a cable is pulled at the switch.

        Programs here see an interface that is up.
        """
        _ip("-n", self.switch, "link", "set", self.port, "down")

    def end_all(self) -> None:
        """End every program on this host: all of them are the test's."""
        for pid in _ip("netns", "pids", self.name).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        for program in self._started:
            program.communicate(timeout=30)


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Hosts that reach each other and nothing else. Skips the test where they cannot be made."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the program ip (Debian, Ubuntu: iproute2)")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    switch = f"tw{os.getpid()}-switch"
    made = [
        Host(f"tw{os.getpid()}-{n}", f"10.77.0.{n + 1}", switch, f"port{n}") for n in range(count)
    ]
    try:
        _make_switch(switch)
        for host in made:
            _join(host)
        yield made
    finally:
        present = _ip("netns", "list").split()
        for host in made:
            if host.name in present:
                host.end_all()
                _ip("netns", "delete", host.name)
        if switch in present:
            _ip("netns", "delete", switch)


def _make_switch(switch: str) -> None:
    try:
        _ip("netns", "add", switch)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
    _ip("-n", switch, "link", "add", "bridge", "mtu", str(MTU_NBYTES), "type", "bridge")
    _ip("-n", switch, "link", "set", "bridge", "up")


def _join(host: Host) -> None:
    switch, port = host.switch, host.port
    _ip("netns", "add", host.name)
    pair = ["type", "veth", "peer", "name", port, "netns", switch]
    _ip("-n", host.name, "link", "add", INTERFACE, *pair)
    _ip("-n", switch, "link", "set", port, "mtu", str(MTU_NBYTES), "master", "bridge", "up")
    _ip("-n", host.name, "link", "set", INTERFACE, "mtu", str(MTU_NBYTES))
    _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", INTERFACE)
    for interface in ("lo", INTERFACE):
        _ip("-n", host.name, "link", "set", interface, "up")


def _ip(*arguments: str) -> str:
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout
