"""A process of a benchmark: a server, a worker or a trainer that does as it is told.

    python -m thinwire.lab.bench.server_process server|worker|trainer

Orders come on stdin, answers go to stdout, one line each (see ``server_orders``). It ends with its
stdin. One process plays in many cells, one after the other.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TextIO

import torch

from thinwire.errors import ConfigError
from thinwire.lab.bench.links_trainer import TrainerRole
from thinwire.lab.bench.server_orders import Answer, Listen, Order, Used, read_order, write_answer
from thinwire.lab.bench.server_worker import WorkerRole
from thinwire.server.retention import LogSettings
from thinwire.server.server import Server
from thinwire.spelling import read_recipe

KEPT_NBYTES = 1 << 29
"""Of each log, so that a long run does not fill the disk."""

_FSYNC = {"off": "off", "on": "off", "fsync": "step"}
_NEVER_SECONDS = 86400.0


class Role(Protocol):
    def do(self, order: Order) -> Answer: ...


def main() -> None:
    """Do as told until stdin ends."""
    answers = _own_stdout()
    torch.set_num_threads(1)
    roles: dict[str, Callable[[], Role]]
    roles = {"server": ServerRole, "worker": WorkerRole, "trainer": TrainerRole}
    role = roles[sys.argv[1]]()
    for line in sys.stdin:
        print(write_answer(_answer(role, line)), file=answers, flush=True)
    os._exit(0)  # gloo sometimes aborts when it is taken down in order


def _own_stdout() -> TextIO:
    """Stdout for answers alone: what libraries print, as gloo does, goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _answer(role: Role, line: str) -> Answer:
    try:
        return role.do(read_order(line))
    except Exception as error:
        return Answer(error=_sentence(error))


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class ServerRole:
    """One ``Server`` for each cell. Those whose turn it is not do nothing."""

    def do(self, order: Order) -> Answer:
        if isinstance(order, Used):
            return Answer(cpu_seconds=time.process_time())
        if isinstance(order, Listen):
            return self._listen(order)
        raise ConfigError(f"{type(order).__name__} is nothing for a server")

    def _listen(self, order: Listen) -> Answer:
        server = Server(
            f"tcp://{order.host}:0",
            read_recipe(order.recipe),
            workers=order.workers,
            log_dir=None if order.log == "off" else Path(order.folder),
            log_settings=LogSettings(fsync=_FSYNC[order.log], keep_nbytes=KEPT_NBYTES),
            insecure=True,
            late_seconds=_NEVER_SECONDS,
        )
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        return Answer(address=server.address)


def _serve(server: Server) -> None:
    """What goes wrong ends the process, so that it is noticed at once."""
    try:
        server.run()
    except BaseException as error:
        print(_sentence(error), file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
