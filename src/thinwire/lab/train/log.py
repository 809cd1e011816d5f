"""The log of a run: ``log.jsonl`` in its folder. The first line has its settings, others events.

A run that goes on drops the lines after its checkpoint, because it will write them again.
"""

from __future__ import annotations

import fcntl
import json
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, TextIO

from thinwire.errors import ConfigError, ThinwireError
from thinwire.lab.train.events import Event, Progress, read_event, write_event

NAME = "log.jsonl"
FORMAT = 1


class RunLog:
    """Open for writing by one process alone."""

    def __init__(self, folder: Path, record: dict[str, Any], *, step: int) -> None:
        """Go on after ``step``, or begin. ``record`` is what the run's result depends on: a folder
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
        # It tries once more to write what did not fit, of which ``write`` has told already.
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
    """Events up to ``step``, and the bytes of their lines and of the first one. What comes after
    them is dropped, also a line that was cut off because the disk was full."""
    lines = path.read_text().split("\n")[:-1]
    if not lines:
        return [], 0
    _check_same(path, json.loads(lines[0]), json.loads(json.dumps(_first(record))))
    events = list(takewhile(lambda event: event.step <= step, map(read_event, lines[1:])))
    return events, sum(len(line.encode()) + 1 for line in lines[: 1 + len(events)])


def _check_same(path: Path, found: dict[str, Any], own: dict[str, Any]) -> None:
    different = [name for name in own if found.get(name) != own[name]]
    if different:
        name = different[0]
        raise ConfigError(
            f"{path.parent} has another run in it, with {name} {found.get(name)}, not {own[name]}: "
            "give a new folder, or the same command"
        )
