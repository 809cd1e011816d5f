"""``Hosts``: simulated hosts on this machine, joined by links of a limited rate, and of a length.

A host is a network namespace. All are on one bridge, which is in a namespace of its own without a
route out of it: this machine's network is not touched. With a delay a process there forwards
packets instead of the bridge (``delay.py``). All are removed when the benchmark ends; the next
benchmark removes what a killed one has left.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from thinwire.checks import check_at_least
from thinwire.errors import ConfigError, ThinwireError
from thinwire_lab.processes import ChildProcess

INTERFACE = "eth0"

_BURST_SECONDS = 0.5e-3
"""The burst, as a time. With more, small messages would pass as if there were no limit."""
_LEAST_BURST_NBYTES = 16_000
_FAST = 10**10
_FAST_BURST_NBYTES = 4_000_000
"""The burst from 10 Gbit/s on, where the processor is the limit and not the link: less would
measure how often the shaper wakes up."""
_PACKET_NBYTES = 56_000
"""The largest packet for a shaper, so that with its headers it fits into the burst at 1 Gbit/s.
The kernel would cut larger ones into frames, which no real card makes it do: that cost DDP four
times the processor time of a step."""
_LATENCY = "50ms"
_DEADLINE_SECONDS = 30.0
_POLL_SECONDS = 0.1
_MOST_HOSTS = 200
_NAME = re.compile(r"twbench([0-9]+)x([0-9]+)(-[0-9]+)?")
_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace in which programs see ``interface`` with an ``address`` of its own."""

    name: str
    address: str
    interface: str = INTERFACE

    @property
    def prefix(self) -> tuple[str, ...]:
        """What the command of a program that runs there begins with."""
        return ("ip", "netns", "exec", self.name)


class Hosts:
    """Hosts that reach each other and nothing else, as fast as the machine can until ``limit``."""

    def __init__(self, switch: str, count: int, *, bridged: bool = True) -> None:
        """Ports that are not ``bridged`` wait for a program that forwards packets."""
        self._switch = switch
        _run("ip", "netns", "add", switch)
        if bridged:
            _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
            _run("ip", "-n", switch, "link", "set", "bridge", "up")
        self._join = ("master", "bridge") if bridged else ()
        self.hosts = [self._add(number) for number in range(count)]

    def limit(self, bits_per_second: int | None) -> None:
        """Limit what every host sends and receives to this rate; None is no limit."""
        for number, host in enumerate(self.hosts):
            _limit(host.name, host.interface, bits_per_second)
            if len(self.hosts) > 2:  # of two, neither can receive faster than the other sends
                _limit(self._switch, _port(number), bits_per_second)

    def _add(self, number: int) -> Host:
        host = Host(f"{self._switch}-{number}", f"10.78.0.{number + 1}")
        _run("ip", "netns", "add", host.name)
        pair = ("type", "veth", "peer", "name", _port(number), "netns", self._switch)
        _run("ip", "-n", host.name, "link", "add", INTERFACE, *pair)
        _run("ip", "-n", self._switch, "link", "set", _port(number), *self._join, "up")
        _run("ip", "-n", host.name, "address", "add", f"{host.address}/24", "dev", INTERFACE)
        _run("ip", "-n", host.name, "link", "set", INTERFACE, "gso_max_size", str(_PACKET_NBYTES))
        for interface in ("lo", INTERFACE):
            _run("ip", "-n", host.name, "link", "set", interface, "up")
        return host


def _port(number: int) -> str:
    return f"port{number}"


@contextmanager
def hosts(count: int, *, delay_seconds: float = 0.0) -> Iterator[Hosts]:
    """Make ``count`` hosts. At the end, all programs on them are killed.

    ``delay_seconds`` is added to a round trip between any two, half of it on each way.
    """
    check_at_least(delay_seconds, 0, owner="bench", field="delay_seconds")
    _check_allowed(count)
    name = f"twbench{os.getpid()}x{_started(os.getpid())}"
    with _sigterm_as_exit():
        _remove(_abandoned())
        try:
            network = Hosts(name, count, bridged=not delay_seconds)
            with _switch(name, count, delay_seconds / 2) if delay_seconds else nullcontext():
                yield network
        finally:
            with _signals_ignored():
                _remove([other for other in _made() if other.startswith(name)])


@contextmanager
def _switch(namespace: str, ports: int, seconds: float) -> Iterator[None]:
    """Forward packets there, each after so many seconds."""
    arguments = (f"{seconds}", *(_port(number) for number in range(ports)))
    module, prefix = "thinwire_lab.bench.delay", ("ip", "netns", "exec", namespace)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = ChildProcess(
            "delay", module, *arguments, folder=folder, environment={}, prefix=prefix
        )
        try:
            _wait_until_ready(process)
            yield
        except Exception as error:
            if process.exit_code is not None:
                reason = process.last_error() or f"exit code {process.exit_code}"
                raise ThinwireError(f"bench: nothing forwards packets: {reason}") from error
            raise
        finally:
            process.kill()


def _wait_until_ready(process: ChildProcess) -> None:
    ends = time.monotonic() + _DEADLINE_SECONDS
    while process.read_line(_POLL_SECONDS) is None:
        if process.exit_code is not None or time.monotonic() > ends:
            raise ThinwireError("bench: the program that delays packets did not start")


def _check_allowed(count: int) -> None:
    if shutil.which("ip") is None or shutil.which("tc") is None:
        raise ConfigError("bench: a link needs the programs ip and tc (Debian, Ubuntu: iproute2)")
    if os.geteuid() != 0:
        raise ConfigError("bench: a link needs root, to make network namespaces")
    if count > _MOST_HOSTS:
        raise ConfigError(f"bench: {count} processes, a link joins {_MOST_HOSTS} at most")


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that namespaces are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(_TERMINATED)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM during cleanup, also in the programs that do it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _made() -> list[str]:
    names = (line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line)
    return [name for name in names if _NAME.fullmatch(name)]


def _abandoned() -> list[str]:
    """The namespaces of benchmarks that have ended."""
    matches = ((name, _NAME.fullmatch(name)) for name in _made())
    return [name for name, parts in matches if parts and _started(int(parts[1])) != int(parts[2])]


def _started(pid: int) -> int:
    """When a process started, in clock ticks, because pids are reused; 0 if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def _remove(names: Sequence[str]) -> None:
    """Remove namespaces, and kill the programs on them, which are all the benchmark's."""
    for name in names:
        for pid in _run("ip", "netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _run("ip", "netns", "delete", name)


def _limit(namespace: str, interface: str, bits_per_second: int | None) -> None:
    where = ("dev", interface, "root")
    if bits_per_second is None:
        _run("tc", "-n", namespace, "qdisc", "replace", *where, "noqueue")
        return
    shape = ("rate", f"{bits_per_second}bit", "burst", f"{burst_nbytes(bits_per_second)}b")
    _run("tc", "-n", namespace, "qdisc", "replace", *where, "tbf", *shape, "latency", _LATENCY)


def burst_nbytes(bits_per_second: int) -> int:
    """The burst of a link of this rate."""
    if bits_per_second >= _FAST:
        return _FAST_BURST_NBYTES
    return max(_LEAST_BURST_NBYTES, round(bits_per_second / 8 * _BURST_SECONDS))


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DEADLINE_SECONDS, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"bench: {' '.join(command)} did not end") from error
    except subprocess.CalledProcessError as error:
        reason = " ".join(str(error.stderr).split())
        hint = "; are CAP_NET_ADMIN and CAP_SYS_ADMIN missing?" if "not permitted" in reason else ""
        raise ConfigError(f"bench: {' '.join(command)} failed: {reason}{hint}") from error
    return done.stdout
