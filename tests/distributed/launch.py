"""Real processes over gloo on loopback, with a deadline, their results by rank."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Task = Callable[..., Any]


def run(task: Task, *arguments: object, ranks: int, deadline_seconds: float = 90.0) -> list[Any]:
    """What ``task(*arguments)`` returns on each of ``ranks`` processes.

    A process that fails raises here with its traceback. How processes end after they have answered
    is not judged: gloo sometimes aborts at teardown.
    """
    context = multiprocessing.get_context("spawn")
    answers: Queue[tuple[int, bool, Any]] = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        processes = [
            context.Process(target=_main, args=(task, arguments, rank, ranks, store, answers))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        try:
            results = dict(_checked(answers.get(timeout=deadline_seconds)) for _ in range(ranks))
        finally:
            for process in processes:
                process.join(timeout=5)
                process.kill()
    return [results[rank] for rank in range(ranks)]


def _checked(answer: tuple[int, bool, Any]) -> tuple[int, Any]:
    rank, fine, result = answer
    if not fine:
        raise AssertionError(f"rank {rank} failed:\n{result}")
    return rank, result


def _main(
    task: Task,
    arguments: tuple[object, ...],
    rank: int,
    ranks: int,
    store: str,
    answers: Queue[tuple[int, bool, Any]],
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=60),
        )
        answers.put((rank, True, task(*arguments)))
    except BaseException:
        answers.put((rank, False, traceback.format_exc()))
