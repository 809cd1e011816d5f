"""Where few files may be open (ulimit -n), servers and workers say so, or do all their work."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from tests.faults.crowd import say_nothing
from tests.server.processes import Process, free_address
from tests.server.servers import train
from tests.transports import DEADLINE_SECONDS
from thinwire.server.log.settings import LogSettings
from thinwire.transport.tcp import connect

RECIPE = tw.dense()
WORKERS = 2
ROLLING = LogSettings(fsync="off", segment_nbytes=1, keep_steps=1)
"""A new segment for each group, a snapshot with each, and old ones are deleted."""


def let_open(more: int, *, hard: int | None = None) -> None:
    """Let this process open only so many files beside those that it has; for ever, unless the
    ``hard`` limit is higher."""
    used = len(os.listdir("/proc/self/fd")) - 1
    most = used + (more if hard is None else hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, most))


def start(address: str, folder: Path, **options: Any) -> tw.Server:
    return tw.Server(address, RECIPE, workers=WORKERS, log_dir=folder, **options)


def refusal(folder: Path, more: int) -> str:
    let_open(more)
    try:
        start("tcp://127.0.0.1:0", folder).close()
    except tw.ConfigError as error:
        return str(error)
    return ""


def serve(address: str, folder: Path, more: int, hard: int) -> int:
    let_open(more, hard=hard)
    server = start(address, folder, log_settings=ROLLING, snapshot_nbytes=1)
    server.run(tick_seconds=0.02)
    return server.stats().version


def join(address: str) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        connect(address, deadline_seconds=DEADLINE_SECONDS)
    except tw.ThinwireError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return "connected"


def needed(folder: Path) -> int:
    """What a server says that it needs."""
    with Process(refusal, folder, 0) as process:
        said = process.result()
    found = re.search(r"a server for 2 workers needs (\d+) more open files", said)
    assert found is not None, said
    return int(found[1])


def test_a_server_says_how_many_files_it_must_be_able_to_open(tmp_path: Path) -> None:
    enough = needed(tmp_path)
    with Process(refusal, tmp_path, enough - 1) as process:
        assert f"raise the limit with ulimit -n {enough}" in _without_used(process.result())
    with Process(refusal, tmp_path, enough) as process:
        assert process.result() == ""


def _without_used(said: str) -> str:
    """With the number of files that were open subtracted from the limit that is advised."""
    used = int(re.findall(r"has (\d+):", said)[0])
    return re.sub(r"-n (\d+)", lambda found: f"-n {int(found[1]) - used}", said)


@pytest.mark.parametrize("soft", ["all", "none"])
def test_a_server_that_may_open_enough_files_serves_all_its_workers(
    soft: str, tmp_path: Path
) -> None:
    """Enough by the hard limit: the soft one it raises."""
    enough = needed(tmp_path / "tried")
    address = free_address()
    more = enough if soft == "all" else 0
    with Process(serve, address, tmp_path / "log", more, enough) as process:
        train([address], RECIPE, WORKERS, 12)
        assert process.result() == 12


def test_a_worker_that_can_open_no_connection_says_why() -> None:
    with Process(join, free_address()) as process:
        assert "raise the limit with ulimit -n" in process.result()


def test_a_crowd_that_says_nothing_takes_no_files_that_a_server_needs(tmp_path: Path) -> None:
    """Of connections: the server goes on to open files of its log, and new workers come in."""
    enough = needed(tmp_path / "tried")
    address = free_address()
    with (
        Process(serve, address, tmp_path / "log", enough, enough) as process,
        Process(say_nothing, address, 10 * enough),
    ):
        train([address], RECIPE, WORKERS, 12)
        assert process.result() == 12
