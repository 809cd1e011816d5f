"""Real processes over gloo on loopback, with a deadline, their results by rank.

Importing torch takes longer than most tests, so the processes stay for the next test, each time
with a new process group. A test that failed, or that leaves its processes unusable, ends them.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Task = Callable[..., Any]


class Rank:
    """One process that runs what it is given."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def result(self, number: int, until: float) -> Any:
        """What the task returned; raises if it failed or did not end in time."""
        if not self.pipe.poll(max(0.0, until - time.monotonic())):
            raise AssertionError(f"rank {number} did not answer in time")
        try:
            fine, result = self.pipe.recv()
        except EOFError:
            raise AssertionError(f"rank {number} died") from None
        if not fine:
            raise AssertionError(f"rank {number} failed:\n{result}")
        return result


_ranks: list[Rank] = []


def run(
    task: Task,
    *arguments: object,
    ranks: int,
    deadline_seconds: float = 90.0,
    keep: bool = True,
    env: dict[str, str] | None = None,
) -> list[Any]:
    """What ``task(*arguments)`` returns on each of ``ranks`` processes, within a process group.

    A process that fails raises here with its traceback. With ``keep=False`` the processes are ended
    afterwards. ``env`` are environment variables for this task alone.
    """
    while len(_ranks) < ranks:
        _ranks.append(Rank())
    until = time.monotonic() + deadline_seconds
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        for number, rank in enumerate(_ranks[:ranks]):
            rank.pipe.send((task, arguments, number, ranks, store, env or {}))
        try:
            results = [rank.result(n, until) for n, rank in enumerate(_ranks[:ranks])]
        except AssertionError:
            end()
            raise
    if not keep:
        end()
    return results


@atexit.register
def end() -> None:
    """End all processes. How they end is not judged: gloo sometimes aborts at teardown."""
    while _ranks:
        rank = _ranks.pop()
        rank.process.kill()
        rank.process.join(timeout=5)


def _serve(pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    while True:
        try:
            task, arguments, rank, ranks, store, env = pipe.recv()
        except EOFError:
            return
        os.environ.update(env)
        pipe.send(_run(task, arguments, rank, ranks, store))
        for name in env:
            del os.environ[name]


def _run(
    task: Task, arguments: tuple[object, ...], rank: int, ranks: int, store: str
) -> tuple[bool, Any]:
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=60),
        )
        result = task(*arguments)
        dist.barrier()
        dist.destroy_process_group()
        return True, result
    except BaseException:
        return False, traceback.format_exc()
