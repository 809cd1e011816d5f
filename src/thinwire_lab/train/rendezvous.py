"""``publish``, ``await_all`` and ``StopFlag``: how processes of a run find each other and stop.

They share a folder, a new one for every start. Each server writes its address there and workers
wait for all of them, so all can start at once: most of a start is the import of torch.
"""

from __future__ import annotations

import time
from pathlib import Path

from thinwire.errors import TransportTimeout
from thinwire.files import replacing

_POLL_SECONDS = 0.05


def publish(folder: Path, rank: int, address: str) -> None:
    """Write the address of a server."""
    with replacing(_path(folder, rank)) as file:
        file.write_text(address)


def await_all(folder: Path, servers: int, *, deadline_seconds: float) -> tuple[str, ...]:
    """Wait for the addresses of all servers; return them by rank."""
    until = time.monotonic() + deadline_seconds
    for rank in range(servers):
        while not _path(folder, rank).exists():
            if time.monotonic() > until:
                raise TransportTimeout(f"server {rank} did not start within {deadline_seconds:g} s")
            time.sleep(_POLL_SECONDS)
    return tuple(_path(folder, rank).read_text() for rank in range(servers))


def _path(folder: Path, rank: int) -> Path:
    return folder / f"server-{rank}.txt"


class StopFlag:
    """See ``Stop``. Any process may ask; rank 0 decides after which step all workers stop."""

    def __init__(self, folder: Path, *, rank: int | None, ahead: int = 0) -> None:
        """``rank`` is None in a process that does not train. Others may be this many steps
        ``ahead`` of rank 0, and must not have passed the step that it decides on."""
        self._asked, self._step = folder / "stop", folder / "stop-after"
        self._rank, self._ahead = rank, ahead

    def ask(self) -> None:
        """Let the run stop soon."""
        self._asked.touch()

    def before(self, step: int) -> None:
        if self._rank == 0 and self._asked.exists() and not self._step.exists():
            with replacing(self._step) as file:
                file.write_text(str(step + 1 + self._ahead))

    def after(self, done: int) -> bool:
        return self._step.exists() and done >= int(self._step.read_text())
