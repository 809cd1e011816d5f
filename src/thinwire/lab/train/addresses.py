"""Where the servers of a run are: each writes its address into a folder, workers wait for all.

So they can all be started at once; most of a start is the import of torch.
"""

from __future__ import annotations

import time
from pathlib import Path

from thinwire.errors import TransportTimeout

_LOOK_SECONDS = 0.05


def publish(folder: Path, rank: int, address: str) -> None:
    path = _path(folder, rank)
    fresh = path.with_suffix(".new")
    fresh.write_text(address)
    fresh.rename(path)


def await_all(folder: Path, servers: int, *, deadline_seconds: float) -> tuple[str, ...]:
    """The addresses by rank, once all are there."""
    until = time.monotonic() + deadline_seconds
    for rank in range(servers):
        while not _path(folder, rank).exists():
            if time.monotonic() > until:
                raise TransportTimeout(f"server {rank} did not start within {deadline_seconds:g} s")
            time.sleep(_LOOK_SECONDS)
    return tuple(_path(folder, rank).read_text() for rank in range(servers))


def _path(folder: Path, rank: int) -> Path:
    return folder / f"server-{rank}.txt"
