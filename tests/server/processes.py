"""Servers and workers as processes, to be killed, stopped and started again.

They are forked from one process that has imported everything, so that starting one is quick.
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

import thinwire as tw
from thinwire.recipe import Recipe

_context = multiprocessing.get_context("forkserver")
# What torch imports when the first optimizer is made takes seconds otherwise, in every process.
_context.set_forkserver_preload(["tests.server.processes", "torch._dynamo"])
# The package is lazy: without this, every process would import the rest of it by itself.
_PRELOADED = (tw.Client, tw.Server, tw.dgc)

PATIENCE_SECONDS = 120.0
"""After this a test says that something hangs."""


def free_address() -> str:
    """A port that nobody has now, and that a server can have again after it was killed.

    Not one that the system hands out (from 32768 on): while a server is down, it could give the
    port to any connection of any test that runs beside this one.
    """
    for port in islice(_ports, _PORTS):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            return f"tcp://127.0.0.1:{port}"
    raise AssertionError("no port is free")


def _own_ports() -> Iterator[int]:
    """Those of this process of pytest, round and round, from another one in each session."""
    first = 20_000 + _PORTS * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    start = os.getpid() % _PORTS
    return cycle([first + (start + i) % _PORTS for i in range(_PORTS)])


_PORTS = 2000
_ports = _own_ports()


class ServerProcess(AbstractContextManager["ServerProcess"]):
    """A server with a log, in a process of its own. ``output`` has what it logged."""

    def __init__(self, folder: Path, recipe: Recipe, **options: Any) -> None:
        self.address, self.folder = free_address(), folder
        self.output = folder.with_suffix(".txt")
        self._arguments = (self.address, recipe, {"log_dir": folder / "log", **options})
        self.start()

    def start(self) -> None:
        self.process = _context.Process(
            target=_serve, args=(*self._arguments, self.output), daemon=True
        )
        self.process.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE_SECONDS)

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait(self) -> int | None:
        """Until it ends by itself; its exit code."""
        self.process.join(PATIENCE_SECONDS)
        return self.process.exitcode

    def log(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            print(f"the server at {self.address}, exit code {self.process.exitcode}:\n{self.log()}")
        self.kill()


def _serve(address: str, recipe: Recipe, options: Mapping[str, Any], output: Path) -> None:
    torch.set_num_threads(1)
    logging.basicConfig(filename=output, level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        tw.Server(address, recipe, **options).run(tick_seconds=0.02)
    except tw.ThinwireError as error:
        logging.getLogger(__name__).error("%s: %s", type(error).__name__, error)
        raise SystemExit(1) from None


class Process(AbstractContextManager["Process"]):
    """Runs ``task(*arguments)`` in a process of its own."""

    def __init__(self, task: Callable[..., Any], *arguments: Any) -> None:
        self._pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=_run, args=(theirs, task, arguments), daemon=True)
        self.process.start()
        theirs.close()

    def result(self) -> Any:
        """What the task returned. Raises if it failed, died, or takes too long."""
        if not self._pipe.poll(PATIENCE_SECONDS):
            raise AssertionError("a worker hangs")
        try:
            fine, result = torch.load(io.BytesIO(self._pipe.recv_bytes()), weights_only=False)
        except EOFError:
            raise AssertionError("a worker died") from None
        if not fine:
            raise AssertionError(result)
        return result

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._tell()
        self.process.kill()
        self.process.join(PATIENCE_SECONDS)

    def _tell(self) -> None:
        """What became of the task: it may be why the test has failed."""
        if not self._pipe.poll():
            print("a worker is still at work")
            return
        try:
            self.result()
        except AssertionError as error:
            print(f"a worker, exit code {self.process.exitcode}: {error}")


def _run(pipe: Connection, task: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer = True, task(*arguments)
    except BaseException:
        answer = False, traceback.format_exc()
    # As bytes: a pipe would send tensors as names of files, which end with this process.
    data = io.BytesIO()
    torch.save(answer, data)
    pipe.send_bytes(data.getvalue())


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, f"not in time: {what}"
        time.sleep(0.01)
