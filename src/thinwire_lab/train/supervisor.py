"""``Supervisor``: starts the processes of a run, passes their events on and ends them.

They end with the run, and also when their parent is killed. An error names the process that ended
first; what was saved until then is kept.
"""

from __future__ import annotations

import signal
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from thinwire.errors import WorkerLost
from thinwire_lab.processes import ChildProcess
from thinwire_lab.train.events import Emit, Outcome, Warned, read_event
from thinwire_lab.train.interrupts import Interrupts
from thinwire_lab.train.plan import Plan
from thinwire_lab.train.rendezvous import StopFlag
from thinwire_lab.train.settings import SERVER, WORKER, ProcessSettings

SAVED = "What was saved is in"

_POLL_SECONDS = 0.1
_BLAME_SECONDS = 1.0
"""One process that ends makes others fail: wait for all of these before one is blamed."""


def train_processes(plan: Plan, emit: Emit, interrupts: Interrupts) -> bool:
    """Train in processes, over gloo or with servers. False if the run was stopped early."""
    with (
        tempfile.TemporaryDirectory(prefix="thinwire-") as folder,
        Supervisor(plan, Path(folder)) as supervisor,
    ):
        supervisor.start()
        return supervisor.watch(emit, interrupts)


class Supervisor(AbstractContextManager["Supervisor"]):
    """``folder`` is an empty one, in which the processes find each other."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self._folder = plan, folder
        self.workers: list[ChildProcess] = []
        self._servers: list[ChildProcess] = []
        self._step, self._finished = 0, False

    def start(self) -> None:
        settings = self.plan.settings
        servers = settings.servers if settings.backend == "server" else 0
        for rank in range(servers):
            self._servers.append(self._start(SERVER, rank))
        for rank in range(settings.workers):
            self.workers.append(self._start(WORKER, rank))

    def _start(self, role: str, rank: int) -> ChildProcess:
        plan = self.plan
        settings = ProcessSettings(role, rank, plan.settings, plan.recipe_text, str(self._folder))
        return ChildProcess(
            f"{role} {rank}",
            "thinwire_lab.train.process",
            settings.write(),
            folder=plan.out / "processes",
            environment={
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": str(plan.settings.threads),
            },
        )

    def watch(self, emit: Emit, interrupts: Interrupts) -> bool:
        """Pass on the events of rank 0 until all workers have ended. False if they were stopped."""
        flag = StopFlag(self._folder, rank=None)
        while any(worker.exit_code is None for worker in self.workers):
            if interrupts.asked:
                flag.ask()
            self.pass_on(emit)
            self._check(emit)
        for worker in self.workers:
            worker.kill()  # it has ended: this reads the rest of its events
        self._pass_all_on(emit)
        self._check(emit)
        return self._finished

    def _pass_all_on(self, emit: Emit) -> None:
        while any(worker.has_lines for worker in self.workers):
            self.pass_on(emit)

    def pass_on(self, emit: Emit) -> None:
        """Emit the next event of rank 0, after waiting for it a little, and others' warnings."""
        for rank, worker in enumerate(self.workers):
            line = worker.read_line(0.0 if rank else _POLL_SECONDS)
            if line is None:
                continue
            event = read_event(line)
            if isinstance(event, Warned):
                emit(replace(event, step=self._step))
                continue
            self._step, self._finished = event.step, isinstance(event, Outcome)
            emit(event)

    def _check(self, emit: Emit) -> None:
        processes = [*self._servers, *self.workers]
        if not any(process.exit_code for process in processes):
            return
        time.sleep(_BLAME_SECONDS)
        self._pass_all_on(emit)  # a warning may tell the reason
        failed = [process for process in processes if process.exit_code]
        killed = (process for process in failed if (process.exit_code or 0) < 0)
        raise WorkerLost(
            f"{_reason(next(killed, failed[0]))}. {SAVED} {self.plan.settings.out}: the same "
            "command goes on from there"
        )

    def __exit__(self, *exception: object) -> None:
        for worker in self.workers:
            worker.kill()
        for server in self._servers:  # all at once: each takes time to close its log
            server.terminate()
        for server in self._servers:
            server.wait()


def _reason(process: ChildProcess) -> str:
    """Why a process failed: the signal that ended it, or the last line of its stderr."""
    code = process.exit_code or 0
    if code < 0:
        return f"{process.name} was killed by {signal.Signals(-code).name}"
    return f"{process.name}: {process.last_error() or f'exit code {code}'}"
