"""``ProcessPool``: the processes of a benchmark, which answer requests within a timeout.

An error names the process that failed. All processes end with the pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import ThinwireError, TransportTimeout
from thinwire_lab.bench.workers.messages import (
    Join,
    Listen,
    Reply,
    Request,
    Used,
    read_reply,
    write_request,
)
from thinwire_lab.processes import ChildProcess

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs: its address there, and what its command begins with."""

    address: str = "127.0.0.1"
    interface: str = "lo"
    prefix: tuple[str, ...] = ()


LOOPBACK = Place()

_KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Let glibc keep what is freed. Gradients are freed in every step, and to get new pages for them
from the system took up to as long as all of backward: from step to step, and for some cases only.
Programs that train for long have such settings, or an allocator that needs none."""


class PoolProcess:
    """One process and the place where it runs."""

    def __init__(self, name: str, role: str, place: Place, folder: Path) -> None:
        self.name, self.place = name, place
        self._child = ChildProcess(
            name,
            "thinwire_lab.bench.workers.process",
            role,
            folder=folder,
            prefix=place.prefix,
            environment={
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": place.interface,
                **_KEEP_MEMORY,
            },
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, request: Request) -> None:
        self._child.write_line(write_request(request))

    def reply(self, timeout_seconds: float) -> Reply | None:
        """Its next reply; None if the timeout passes first."""
        line = self._child.read_line(timeout_seconds)
        return None if line is None else read_reply(line)

    def check(self) -> None:
        """Raise if it has ended, with the last line of its stderr."""
        code = self._child.exit_code
        if code is not None:
            reason = self._child.last_error() or "its stderr is empty"
            raise ThinwireError(f"bench: {self.name} ended with exit code {code}: {reason}")

    def kill(self) -> None:
        """At once: it has nothing to save."""
        self._child.kill()


class ProcessPool(AbstractContextManager["ProcessPool"]):
    """All processes of a benchmark."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.processes: list[PoolProcess] = []

    def start(self, name: str, role: str, place: Place = LOOPBACK) -> PoolProcess:
        """Start a "server", a "worker", a "trainer" or a "learner" there."""
        process = PoolProcess(name, role, place, self._folder)
        self.processes.append(process)
        return process

    def ask(
        self, requests: Iterable[tuple[PoolProcess, Request]], *, timeout_seconds: float
    ) -> list[Reply]:
        """Send all requests at once, and wait for all replies."""
        sent = list(requests)
        for process, request in sent:
            process.send(request)
        ends = time.monotonic() + timeout_seconds
        return [self._wait(process, request, ends, timeout_seconds) for process, request in sent]

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            process.kill()

    def _wait(self, process: PoolProcess, request: Request, ends: float, seconds: float) -> Reply:
        while time.monotonic() < ends:
            reply = process.reply(_POLL_SECONDS)
            if reply is None:
                self._check_all()
            elif reply.error:
                self._check_all()  # the end of another process may be the cause
                raise ThinwireError(f"bench: {process.name} failed: {reply.error}")
            else:
                return reply
        doing = type(request).__name__.lower()
        raise TransportTimeout(f"bench: {process.name} did not {doing} within {seconds:g} s")

    def _check_all(self) -> None:
        for process in self.processes:
            process.check()


_START_SECONDS = 60.0


class Cluster:
    """``timeout_seconds`` is how long a request may take; the first ones may take longer, because
    processes start and import torch."""

    def __init__(
        self,
        pool: ProcessPool,
        *,
        servers: Sequence[Place],
        workers: Sequence[tuple[str, Place]],
        role: str,
        timeout_seconds: float,
    ) -> None:
        """A server in each of its places, and processes of ``role`` by name and place."""
        self._pool, self._timeout_seconds = pool, timeout_seconds
        self.servers = [pool.start(f"server {i}", "server", p) for i, p in enumerate(servers)]
        self.workers = [pool.start(name, role, place) for name, place in workers]

    def ask(
        self, requests: Iterable[tuple[PoolProcess, Request]], timeout_seconds: float
    ) -> list[Reply]:
        return self._pool.ask(requests, timeout_seconds=timeout_seconds)

    def prepare(self, requests: Iterable[tuple[PoolProcess, Request]]) -> list[Reply]:
        """Send requests that come before any measurement."""
        return self.ask(requests, _START_SECONDS + self._timeout_seconds)

    def join(self, store: Path, sizes: Sequence[int], *, deadline_seconds: float) -> None:
        """Let all workers form a process group, and one of the first n for each of ``sizes``."""
        ranks = len(self.workers)
        self.prepare(
            (worker, Join(rank, ranks, str(store), list(sizes), deadline_seconds))
            for rank, worker in enumerate(self.workers)
        )

    def listen(self, make: Callable[[int, str], Listen]) -> list[str]:
        """Start a ``Server`` in each server process; return their addresses. ``make`` gets the
        number and the host of a process."""
        replies = self.prepare(
            (server, make(i, server.place.address)) for i, server in enumerate(self.servers)
        )
        return [reply.address for reply in replies]

    def server_cpu_seconds(self) -> float:
        """Processor time of all servers so far."""
        replies = self.ask(((server, Used()) for server in self.servers), self._timeout_seconds)
        return sum(reply.cpu_seconds for reply in replies)
