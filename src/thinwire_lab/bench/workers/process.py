"""A process of a ``ProcessPool``: a server, a worker, a trainer or a learner.

    python -m thinwire_lab.bench.workers.process server|worker|trainer|learner

It reads requests from stdin and writes replies to stdout, one line each (see ``messages``), until
stdin ends. One process takes part in many cells, one after the other.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from thinwire.errors import ConfigError
from thinwire.recipe_text import read_recipe
from thinwire.server.log.settings import LogSettings
from thinwire.server.server import Server
from thinwire_lab.bench.links.trainer import TrainerRole
from thinwire_lab.bench.training.learner import LearnerRole
from thinwire_lab.bench.workers.keys import server_keys
from thinwire_lab.bench.workers.messages import (
    Listen,
    Reply,
    Request,
    Used,
    read_request,
    write_reply,
)
from thinwire_lab.bench.workers.worker import WorkerRole
from thinwire_lab.processes import reserve_stdout

KEPT_NBYTES = 1 << 29
"""Kept of each log, so that a long run does not fill the disk."""

_FSYNC = {"off": "off", "on": "off", "fsync": "step"}
_NEVER_SECONDS = 86400.0


class Role(Protocol):
    def do(self, request: Request) -> Reply: ...


def main() -> None:
    """Reply to requests until stdin ends."""
    replies = reserve_stdout()
    torch.set_num_threads(1)
    roles: dict[str, Callable[[], Role]]
    roles = {
        "server": ServerRole,
        "worker": WorkerRole,
        "trainer": TrainerRole,
        "learner": LearnerRole,
    }
    role = roles[sys.argv[1]]()
    for line in sys.stdin:
        print(write_reply(_reply(role, line)), file=replies, flush=True)
    os._exit(0)  # gloo sometimes aborts when it is taken down in order


def _reply(role: Role, line: str) -> Reply:
    try:
        return role.do(read_request(line))
    except Exception as error:
        return Reply(error=_sentence(error))


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class ServerRole:
    """One ``Server`` for each cell. They are idle except while their cell is measured."""

    def do(self, request: Request) -> Reply:
        if isinstance(request, Used):
            return Reply(cpu_seconds=time.process_time())
        if isinstance(request, Listen):
            return self._listen(request)
        raise ConfigError(f"{type(request).__name__} is not a request for a server")

    def _listen(self, request: Listen) -> Reply:
        server = Server(
            f"tcp://{request.host}:0",
            read_recipe(request.recipe),
            workers=request.workers,
            log_dir=None if request.log == "off" else Path(request.folder),
            log_settings=LogSettings(fsync=_FSYNC[request.log], keep_nbytes=KEPT_NBYTES),
            keys=server_keys(request.keys),
            insecure=True,
            late_seconds=_NEVER_SECONDS,
        )
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        return Reply(address=server.address)


def _serve(server: Server) -> None:
    """An error ends the process, so that the pool notices it at once."""
    try:
        server.run()
    except BaseException as error:
        print(_sentence(error), file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
