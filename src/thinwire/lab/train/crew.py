"""The processes of a run, as the one that started them sees them.

They are gone when the run is, and also when that one is killed. Whoever ends too early is named;
what was saved until then is kept.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from thinwire.errors import WorkerLost
from thinwire.lab.train.agreement import Agreement
from thinwire.lab.train.events import Outcome, Warned, read_event
from thinwire.lab.train.loop import Say
from thinwire.lab.train.orders import SERVER, WORKER, Order
from thinwire.lab.train.plan import Plan
from thinwire.lab.train.stopping import Interrupts

SAVED = "What was saved is in"

_LOOK_SECONDS = 0.1
_END_SECONDS = 30.0
_BLAME_SECONDS = 1.0
"""Others end because one did: whoever was killed has ended by then, too."""


def train_processes(plan: Plan, say: Say, interrupts: Interrupts) -> bool:
    """In processes of their own, over gloo or with servers. False if it was stopped early."""
    with tempfile.TemporaryDirectory(prefix="thinwire-") as meeting, Crew(plan, meeting) as crew:
        crew.start()
        return crew.watch(say, interrupts)


class Member:
    """One process. What it says on stderr is kept beside the run's log."""

    def __init__(self, order: Order, folder: Path) -> None:
        self.name = f"{order.role} {order.rank}"
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        folder.mkdir(parents=True, exist_ok=True)
        self._errors = folder / f"{order.role}-{order.rank}.txt"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "thinwire.lab.train.process", order.write()],
                stdin=subprocess.PIPE,  # never written to: that it is closed tells that we are gone
                stdout=subprocess.PIPE,
                stderr=errors,
                env={
                    **os.environ,
                    "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": str(order.settings.threads),
                },
                text=True,
                start_new_session=True,  # Ctrl-C reaches only the one that stops the others
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def line(self, seconds: float) -> str | None:
        """The next line it says, if that comes in time."""
        try:
            return self.lines.get(timeout=seconds)
        except queue.Empty:
            return None

    @property
    def killed(self) -> bool:
        return (self.process.poll() or 0) < 0

    @property
    def failed(self) -> bool:
        return bool(self.process.poll())

    def words(self) -> str:
        """How it ended: by which signal, or the last that it said."""
        code = self.process.returncode
        if code < 0:
            return f"{self.name} was killed by {signal.Signals(-code).name}"
        said = self._errors.read_text(errors="replace").strip().splitlines()
        return f"{self.name}: {said[-1].strip() if said else f'exit code {code}'}"

    def end(self) -> None:
        self.process.kill()
        with self.process:  # which closes its pipes, and waits
            self._reader.join(timeout=_END_SECONDS)

    def _read(self) -> None:
        if self.process.stdout is not None:
            with self.process.stdout as lines:
                for line in lines:
                    self.lines.put(line)


class Crew(AbstractContextManager["Crew"]):
    """All processes of a run."""

    def __init__(self, plan: Plan, meeting: str) -> None:
        self._plan, self._meeting = plan, meeting
        self._servers: list[Member] = []
        self._workers: list[Member] = []
        self._step, self._finished = 0, False

    def start(self) -> None:
        settings = self._plan.settings
        servers = settings.servers if settings.backend == "server" else 0
        for rank in range(servers):
            self._servers.append(self._member(SERVER, rank))
        for rank in range(settings.workers):
            self._workers.append(self._member(WORKER, rank))

    def _member(self, role: str, rank: int) -> Member:
        plan = self._plan
        order = Order(role, rank, plan.settings, plan.recipe_text, self._meeting)
        return Member(order, plan.out / "processes")

    def watch(self, say: Say, interrupts: Interrupts) -> bool:
        """Pass on what rank 0 says until all workers have ended. False if they were stopped."""
        agreement = Agreement(Path(self._meeting), rank=-1)
        while any(worker.process.poll() is None for worker in self._workers):
            if interrupts.asked:
                agreement.ask()
            self._pass_on(say)
            self._check(say)
        for worker in self._workers:
            worker.end()  # so that all it said has been read
        self._pass_all_on(say)
        self._check(say)
        return self._finished

    def _pass_all_on(self, say: Say) -> None:
        while any(not worker.lines.empty() for worker in self._workers):
            self._pass_on(say)

    def _pass_on(self, say: Say) -> None:
        """What rank 0 says, for which it waits, and what the others warn of."""
        for rank, worker in enumerate(self._workers):
            line = worker.line(0.0 if rank else _LOOK_SECONDS)
            if line is None:
                continue
            event = read_event(line)
            if isinstance(event, Warned):
                say(replace(event, step=self._step))
                continue
            self._step, self._finished = event.step, isinstance(event, Outcome)
            say(event)

    def _check(self, say: Say) -> None:
        members = [*self._servers, *self._workers]
        if not any(member.failed for member in members):
            return
        time.sleep(_BLAME_SECONDS)
        self._pass_all_on(say)  # of which some may tell why
        failed = [member for member in members if member.failed]
        first = next((member for member in failed if member.killed), failed[0])
        raise WorkerLost(
            f"{first.words()}. {SAVED} {self._plan.settings.out}: the same command goes on from "
            "there"
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.end()
        for server in self._servers:  # with time to close their logs
            server.process.terminate()
        for server in self._servers:
            _wait(server.process)
            server.end()


def _wait(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
