"""A process of a run: a worker or a server.

    python -m thinwire.lab.train.process ORDER

ORDER is JSON (see ``orders``). Worker 0 writes events to stdout, the others only what they warn of.
An error is one line on stderr. When stdin is closed, because whoever started it is gone, a process
ends.
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
from thinwire.lab.train.addresses import await_all, publish
from thinwire.lab.train.agreement import Agreement
from thinwire.lab.train.checkpoint import Keeper
from thinwire.lab.train.ddp import DDPEngine
from thinwire.lab.train.engine import DEADLINE_SECONDS, Engine
from thinwire.lab.train.events import Event
from thinwire.lab.train.loop import Loop
from thinwire.lab.train.orders import SERVER, Order, read_order
from thinwire.lab.train.plan import Plan, prepare
from thinwire.lab.train.server import ServerEngine
from thinwire.lab.train.voice import Voice, Warnings
from thinwire.server.server import Server
from thinwire.spelling import read_recipe

LOSS_SECONDS = 900.0
"""A server waits so long for a worker: longer than workers for each other, so that they tell."""


def main() -> None:
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    out = _own_stdout()
    order = read_order(sys.argv[1])
    torch.set_num_threads(order.settings.threads)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        if order.role == SERVER:
            serve(order)
        else:
            voice = Voice(out)
            logging.getLogger("thinwire").addHandler(Warnings(voice, order.rank))
            work(order, voice)
    except ThinwireError as error:
        print(" ".join(str(error).split()), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)  # gloo sometimes aborts when it is taken down in order


def _end_with_stdin() -> None:
    """As SIGTERM does, so that a server closes its log. Nobody writes to stdin: it only ends."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _own_stdout() -> TextIO:
    """Stdout for ourselves: what libraries print, as gloo does, goes to stderr."""
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return own


def serve(order: Order) -> None:
    """Be a server until all workers are done, or SIGTERM. Its log lets it go on later."""
    server = Server(
        "tcp://127.0.0.1:0",
        read_recipe(order.recipe),
        workers=order.settings.workers,
        log_dir=Path(order.settings.out) / f"server-{order.rank}",
        loss_seconds=LOSS_SECONDS,
        seed=order.settings.seed,
    )
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    publish(Path(order.meeting), order.rank, server.address)
    server.run()


def work(order: Order, voice: Voice) -> None:
    """Train as one of the workers, until all is done or they agree to stop."""
    plan = prepare(order.settings)
    keeper = Keeper(plan.out, rank=order.rank, ranks=order.settings.workers)
    state = keeper.load()
    engine = _engine(plan, order, state and state["engine"])
    leads = order.rank == 0
    loop = Loop(plan, engine, keeper, voice.say if leads else _silent, leads=leads)
    if state is not None:
        loop.load(state)
    finished = loop.run(Agreement(Path(order.meeting), rank=order.rank))
    engine.close(finished=finished)


def _engine(plan: Plan, order: Order, state: dict[str, Any] | None) -> Engine:
    if plan.settings.backend == "ddp":
        return DDPEngine(plan, order.rank, order.store, state)
    addresses = await_all(
        Path(order.meeting), plan.settings.servers, deadline_seconds=DEADLINE_SECONDS
    )
    return ServerEngine(plan, order.rank, addresses, state)


def _silent(event: Event) -> None:
    """Rank 0 speaks for all."""


if __name__ == "__main__":
    main()
