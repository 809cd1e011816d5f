"""Where few files may be open (ulimit -n), servers and workers say so, or do all their work."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from tests.server.processes import Process, free_address
from tests.server.servers import train
from thinwire.server.log.settings import LogSettings

RECIPE = tw.dense()
WORKERS = 2
PLENTY = 100
ROLLING = LogSettings(fsync="off", segment_nbytes=1, keep_steps=1)
"""A new segment for each group, a snapshot with each, and old ones are deleted."""


@contextmanager
def only_more(count: int) -> Iterator[None]:
    """Let this process open only so many files beside those that it has."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def start(address: str, folder: Path, **options: Any) -> tw.Server:
    return tw.Server(address, RECIPE, workers=WORKERS, log_dir=folder, **options)


def refusals(folder: Path) -> list[str]:
    """What a server says with 0, 1, 2 and more files, until it starts."""
    found: list[str] = []
    while len(found) < PLENTY:
        try:
            with only_more(len(found)):
                start("tcp://127.0.0.1:0", folder).close()
        except tw.ConfigError as error:
            found.append(str(error))
        else:
            break
    return found


def serve(address: str, folder: Path, count: int) -> int:
    with only_more(count):
        server = start(address, folder, log_settings=ROLLING, snapshot_nbytes=1)
        server.run(tick_seconds=0.02)
    return server.stats().version


def connect(address: str) -> str:
    try:
        with only_more(3):
            train([address], RECIPE, 1, 1)
    except tw.ConfigError as error:
        return str(error)
    return "connected"


@pytest.mark.timeout(120)
def test_a_server_says_that_it_may_open_too_few_files_or_serves_all_its_workers(
    tmp_path: Path,
) -> None:
    with Process(refusals, tmp_path / "tried") as process:
        said = process.result()
    assert 0 < len(said) < PLENTY
    for sentence in said:
        assert "a server for 2 workers" in sentence
        assert "raise the limit with ulimit -n" in sentence
    address = free_address()
    with Process(serve, address, tmp_path / "log", len(said)) as process:
        train([address], RECIPE, WORKERS, 12)
        assert process.result() == 12


def test_a_worker_says_that_it_may_open_too_few_files() -> None:
    with Process(connect, free_address()) as process:
        assert "raise the limit with ulimit -n" in process.result()
