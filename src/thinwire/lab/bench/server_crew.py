"""The processes of the server benchmark, as the one that started them sees them.

Every wait has a deadline, and whoever ends too early is named. They are gone when the crew is.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from thinwire.errors import ThinwireError, TransportTimeout
from thinwire.lab.bench.server_orders import Answer, Order, read_answer, write_order

_LOOK_SECONDS = 0.2
_END_SECONDS = 10.0


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


class Member:
    """One process. What it says on stderr is kept in ``folder``."""

    def __init__(self, name: str, role: str, place: Place, folder: Path) -> None:
        self.name, self.place = name, place
        self._errors = folder / f"{name.replace(' ', '-')}.txt"
        own = {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": place.interface,
            **_KEEP_MEMORY,
        }
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*place.prefix, sys.executable, "-m", "thinwire.lab.bench.server_process", role],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **own},
                text=True,
                start_new_session=True,  # Ctrl-C reaches only the process that ends the others
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, order: Order) -> None:
        """Give an order. That a process has ended is noticed when its answer is awaited."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.write(write_order(order) + "\n")
                self._process.stdin.flush()

    def hear(self, seconds: float) -> Answer | None:
        """What it answers, if it does so in time."""
        try:
            return read_answer(self._lines.get(timeout=seconds))
        except queue.Empty:
            return None

    def check(self) -> None:
        """Raise if it has ended, with its last words."""
        code = self._process.poll()
        if code is not None:
            said = self._errors.read_text(errors="replace").strip().splitlines()
            words = said[-1].strip() if said else "it said nothing"
            raise ThinwireError(f"bench: {self.name} ended with exit code {code}: {words}")

    def end(self) -> None:
        """End it at once: it has nothing that anybody needs."""
        self._process.kill()
        self._process.wait(timeout=_END_SECONDS)
        self._reader.join(timeout=_END_SECONDS)
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def _read(self) -> None:
        """Take every line as it comes, so that an answer can be awaited with a deadline."""
        if self._process.stdout is not None:
            with self._process.stdout as lines:
                for line in lines:
                    self._lines.put(line)


class Crew(AbstractContextManager["Crew"]):
    """All processes of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.members: list[Member] = []

    def start(self, name: str, role: str, place: Place = LOOPBACK) -> Member:
        """Start a "server", a "worker" or a "trainer" there."""
        member = Member(name, role, place, self._folder)
        self.members.append(member)
        return member

    def ask(
        self, orders: Iterable[tuple[Member, Order]], *, deadline_seconds: float
    ) -> list[Answer]:
        """Give orders to several at once, and wait for all answers."""
        asked = list(orders)
        for member, order in asked:
            member.tell(order)
        ends = time.monotonic() + deadline_seconds
        return [self._wait(member, order, ends, deadline_seconds) for member, order in asked]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self.members:
            member.end()

    def _wait(self, member: Member, order: Order, ends: float, seconds: float) -> Answer:
        while time.monotonic() < ends:
            answer = member.hear(_LOOK_SECONDS)
            if answer is None:
                self._check_all()
            elif answer.error:
                self._check_all()  # whose end another one complains about
                raise ThinwireError(f"bench: {member.name} failed: {answer.error}")
            else:
                return answer
        doing = type(order).__name__.lower()
        raise TransportTimeout(f"bench: {member.name} did not {doing} within {seconds:g} s")

    def _check_all(self) -> None:
        for member in self.members:
            member.check()
