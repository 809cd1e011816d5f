"""A process of a run that a ``Supervisor`` starts: a worker or a server.

    python -m thinwire_lab.train.process SETTINGS

SETTINGS are ``ProcessSettings`` as JSON. Worker 0 writes events to stdout, the others only
warnings. An error is one line on stderr. The process ends with its parent.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

import torch

from thinwire.errors import ThinwireError
from thinwire.recipe_text import read_recipe
from thinwire.server.server import Server
from thinwire_lab.processes import end_with_parent, reserve_stdout
from thinwire_lab.train.checkpoint import CheckpointStore
from thinwire_lab.train.engines.base import DEADLINE_SECONDS, Engine
from thinwire_lab.train.engines.ddp import DDPEngine
from thinwire_lab.train.engines.server import ServerEngine
from thinwire_lab.train.events import Event, Warned, write_event
from thinwire_lab.train.loop import Loop
from thinwire_lab.train.plan import Plan, prepare
from thinwire_lab.train.rendezvous import StopFlag, await_all, publish
from thinwire_lab.train.settings import SERVER, ProcessSettings, read_process_settings

_MOST_WARNINGS = 100
"""Reported by one process; the file with its stderr has all of them."""


class EventWriter:
    """Writes events, a line each, from any thread."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._lock = out, threading.Lock()

    def write(self, event: Event) -> None:
        with self._lock:
            print(write_event(event), file=self._out, flush=True)


class WarningEvents(logging.Handler):
    """Turns logged warnings into events; the same text once."""

    def __init__(self, writer: EventWriter, worker: int) -> None:
        super().__init__(logging.WARNING)
        self._writer, self._worker = writer, worker
        self._written: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._written and len(self._written) < _MOST_WARNINGS:
            self._written.add(text)
            self._writer.write(Warned(0, self._worker, text))


LOSS_SECONDS = 900.0
"""After this a server counts a worker as lost. Workers time out earlier, and report why."""


def main() -> None:
    end_with_parent()
    out = reserve_stdout()
    settings = read_process_settings(sys.argv[1])
    torch.set_num_threads(settings.run.threads)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        if settings.role == SERVER:
            serve(settings)
        else:
            writer = EventWriter(out)
            logging.getLogger("thinwire").addHandler(WarningEvents(writer, settings.rank))
            work(settings, writer)
    except ThinwireError as error:
        print(" ".join(str(error).split()), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)  # gloo sometimes aborts when it is taken down in order


def serve(settings: ProcessSettings) -> None:
    """Run a server until all workers are done, or SIGTERM. It resumes from its log."""
    server = Server(
        "tcp://127.0.0.1:0",
        read_recipe(settings.recipe),
        workers=settings.run.workers,
        log_dir=Path(settings.run.out) / f"server-{settings.rank}",
        loss_seconds=LOSS_SECONDS,
        seed=settings.run.seed,
    )
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    publish(settings.rendezvous, settings.rank, server.address)
    server.run()


def work(settings: ProcessSettings, writer: EventWriter) -> None:
    """Train as one of the workers, until all steps are done or all workers stop."""
    plan = prepare(settings.run)
    checkpoints = CheckpointStore(plan.out, rank=settings.rank, ranks=settings.run.workers)
    state = checkpoints.load()
    engine = _engine(plan, settings, state and state["engine"])
    leads = settings.rank == 0
    loop = Loop(plan, engine, checkpoints, writer.write if leads else _discard, leads=leads)
    if state is not None:
        loop.load(state)
    rounds = plan.settings.rounds
    ahead = 0 if rounds is None else rounds.longest + rounds.delay
    finished = loop.run(StopFlag(settings.rendezvous, rank=settings.rank, ahead=ahead))
    engine.close(finished=finished)


def _engine(plan: Plan, settings: ProcessSettings, state: dict[str, Any] | None) -> Engine:
    if plan.settings.backend == "ddp":
        return DDPEngine(plan, settings.rank, settings.gloo_store, state)
    addresses = await_all(
        settings.rendezvous, plan.settings.servers, deadline_seconds=DEADLINE_SECONDS
    )
    return ServerEngine(plan, settings.rank, addresses, state)


def _discard(event: Event) -> None:
    """Only rank 0 reports events."""


if __name__ == "__main__":
    main()
