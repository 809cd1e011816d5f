"""``RunLog``: ``log.jsonl`` in the folder of a run, settings in the first line, then its events.

A run that resumes drops the lines after its checkpoint, because it will write them again.
"""

from __future__ import annotations

import fcntl
import json
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, TextIO

from thinwire.errors import ConfigError, ThinwireError
from thinwire_lab.train.events import Event, Progress, read_event, write_event

NAME = "log.jsonl"
FORMAT = 1


class RunLog:
    """Only one process at a time can have it open."""

    def __init__(self, folder: Path, record: dict[str, Any], *, step: int) -> None:
        """Resume after ``step``, or begin. ``record`` is what the run's result depends on: a folder
        with another run in it is refused."""
        self.path = folder / NAME
        self._file = _locked(self.path)
        try:
            self.events, nbytes = _kept(self.path, record, step)
            self._file.truncate(nbytes)
            if not nbytes:
                self._add(json.dumps(_first(record)))
        except OSError as error:
            self.close()
            raise cannot_write(self.path, error) from error
        except BaseException:
            self.close()
            raise

    def write(self, event: Event) -> None:
        """Keep an event. (``Progress`` is not kept.)"""
        if isinstance(event, Progress):
            return
        self.events.append(event)
        try:
            self._add(write_event(event))
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _add(self, line: str) -> None:
        self._file.write(f"{line}\n")
        self._file.flush()

    def close(self) -> None:
        # Closing flushes again, and fails again if ``write`` has failed.
        with suppress(OSError):
            self._file.close()


def cannot_write(path: Path, error: BaseException) -> ThinwireError:
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    return ThinwireError(
        f"{path} cannot be written: {reason}; what was saved before is as it was, and the same "
        "command goes on from it"
    )


def _locked(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(f"another run is at work in {path.parent}") from None
    return file


def _first(record: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "settings", "format": FORMAT, **record}


def _kept(path: Path, record: dict[str, Any], step: int) -> tuple[list[Event], int]:
    """Events up to ``step``, and the size of their lines and of the first one. Later lines are
    dropped, and so is one that was cut off because the disk was full."""
    lines = path.read_text().split("\n")[:-1]
    if not lines:
        return [], 0
    _check_same(path, json.loads(lines[0]), json.loads(json.dumps(_first(record))))
    events = list(takewhile(lambda event: event.step <= step, map(read_event, lines[1:])))
    return events, sum(len(line.encode()) + 1 for line in lines[: 1 + len(events)])


def _check_same(path: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    different = [name for name in wanted if stored.get(name) != wanted[name]]
    if different:
        name = different[0]
        raise ConfigError(
            f"{path.parent} has another run in it, with {name} {stored.get(name)}, not "
            f"{wanted[name]}: give a new folder, or the same command"
        )
