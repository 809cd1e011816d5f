"""``make_keys``: those that servers and workers of a benchmark use, by the name of their folder."""

from __future__ import annotations

from pathlib import Path

from thinwire.keys.make import new_keys
from thinwire.keys.settings import ServerKeys, WorkerKeys


def make_keys(folder: Path) -> None:
    """One for all servers, and one for all workers."""
    for name in ("server", "worker"):
        new_keys(folder, name)


def server_keys(folder: str) -> ServerKeys | None:
    """None without a folder."""
    if not folder:
        return None
    return ServerKeys(Path(folder) / "server.key", allow=Path(folder) / "worker.crt")


def worker_keys(folder: str) -> WorkerKeys | None:
    if not folder:
        return None
    return WorkerKeys(Path(folder) / "worker.key", server=Path(folder) / "server.crt")
