"""What joins the processes of the server benchmark: loopback, or a link of a given rate.

For a link every process gets a host of its own, which is a network namespace. All are on one
bridge, in a namespace, too, and with no way out of it: nothing of this machine's network is
touched, and nothing is left.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from thinwire.errors import ConfigError
from thinwire.lab.bench.server_crew import LOOPBACK, Place

LOOPBACK_LINK = "loopback"
INTERFACE = "eth0"

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_BURST_SECONDS = 0.5e-3
"""What may pass at once. With more, small messages would pass as if there were no limit."""
_LEAST_BURST_NBYTES = 16_000
_LATENCY = "50ms"
_DEADLINE_SECONDS = 30.0
_MOST_HOSTS = 200


def bits_per_second(link: str) -> int | None:
    """The rate of a link such as "100mbit" or "1gbit"; None for loopback."""
    if link == LOOPBACK_LINK:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,5})(kbit|mbit|gbit)", link)
    if found is None:
        raise ConfigError(f"bench: link {link!r}, expected loopback or a rate such as 1gbit")
    return int(found[1]) * _UNITS[found[2]]


@contextmanager
def places_on(link: str, count: int) -> Iterator[list[Place]]:
    """Places for so many processes, whose hosts each send and receive at the link's rate."""
    rate = bits_per_second(link)
    if rate is None:
        yield [LOOPBACK] * count
        return
    _check_allowed(count)
    name = f"twbench{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", name, "link", "set", "bridge", "up")
        yield [_make_host(name, number, rate) for number in range(count)]
    finally:
        for line in _run("ip", "netns", "list").splitlines():
            made = line.split(maxsplit=1)[0]
            if made == name or made.startswith(f"{name}-"):
                _run("ip", "netns", "delete", made)


def _check_allowed(count: int) -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        raise ConfigError("bench: a link needs root and the programs ip and tc (iproute2)")
    if count > _MOST_HOSTS:
        raise ConfigError(f"bench: {count} processes, a link joins {_MOST_HOSTS} at most")


def _make_host(switch: str, number: int, rate: int) -> Place:
    host, port, address = f"{switch}-{number}", f"port{number}", f"10.78.0.{number + 1}"
    _run("ip", "netns", "add", host)
    pair = ("type", "veth", "peer", "name", port, "netns", switch)
    _run("ip", "-n", host, "link", "add", INTERFACE, *pair)
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", host, "address", "add", f"{address}/24", "dev", INTERFACE)
    for interface in ("lo", INTERFACE):
        _run("ip", "-n", host, "link", "set", interface, "up")
    _limit(host, INTERFACE, rate)
    _limit(switch, port, rate)
    return Place(address, INTERFACE, ("ip", "netns", "exec", host))


def _limit(namespace: str, interface: str, rate: int) -> None:
    burst = max(_LEAST_BURST_NBYTES, round(rate / 8 * _BURST_SECONDS))
    shape = ("tbf", "rate", f"{rate}bit", "burst", f"{burst}b", "latency", _LATENCY)
    _run("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", *shape)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DEADLINE_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        said = " ".join(str(error.stderr).split())
        raise ConfigError(f"bench: {' '.join(command)} failed: {said}") from error
    return done.stdout
