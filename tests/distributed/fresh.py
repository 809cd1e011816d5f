"""Processes of one test alone, which it may kill or stop: nothing of them is used again.

They are forked from a process that has imported torch but never used it: a fresh one costs nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Task = Callable[..., Any]

PRELOADED = [
    __name__,
    "thinwire.hooks.ddp",
    "thinwire.hooks.module",
    "thinwire.virtual.cluster",
    "pytest",
    "torch._dynamo",
]
"""All that tests import, and what DDP imports when it is first used: seconds otherwise."""


class Fresh:
    """One process that runs one task as one rank of a process group."""

    def __init__(
        self,
        task: Task,
        arguments: tuple[object, ...],
        *,
        rank: int,
        ranks: int,
        store: str,
        env: Mapping[str, str],
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.rank = rank
        self._pipe, theirs = context.Pipe()
        self.process: ForkServerProcess = context.Process(
            target=_serve,
            args=(theirs, task, arguments, rank, ranks, store, dict(env)),
            daemon=True,
        )
        self.process.start()
        theirs.close()

    def result(self, until: float) -> Any:
        """What the task returned, in time. The process stays, idle, with its connections."""
        if not self._pipe.poll(max(0.0, until - time.monotonic())):
            raise AssertionError(f"rank {self.rank} did not answer in time")
        try:
            return self._pipe.recv()
        except EOFError:
            raise AssertionError(f"rank {self.rank} died or raised: see its stderr") from None


@contextmanager
def fresh(
    task: Task, *arguments: object, ranks: int, env: Mapping[str, str] | None = None
) -> Iterator[list[Fresh]]:
    """Processes that run ``task(*arguments)`` in a process group. They end with the block."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        processes = [
            Fresh(task, arguments, rank=rank, ranks=ranks, store=store, env=env or {})
            for rank in range(ranks)
        ]
        try:
            yield processes
        finally:
            for one in processes:
                one.process.kill()
                one.process.join(timeout=10)


def _serve(
    pipe: Connection,
    task: Task,
    arguments: tuple[object, ...],
    rank: int,
    ranks: int,
    store: str,
    env: dict[str, str],
) -> None:
    os.environ.update(env, GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    pipe.send(task(*arguments))
    pipe.poll(None)  # until the test is over and this process killed
