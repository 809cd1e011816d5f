"""``ChildProcess``: a Python process that this one starts, reads from and ends.

The child's stdin is a pipe, which the system closes when its parent ends, however that happens. A
child that calls ``end_with_parent`` ends then, too.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

_END_SECONDS = 30.0


class ChildProcess:
    """``python -m module *arguments``, after ``prefix``. Its stderr is kept in a file of
    ``folder``."""

    def __init__(
        self,
        name: str,
        module: str,
        *arguments: str,
        folder: Path,
        environment: Mapping[str, str],
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        folder.mkdir(parents=True, exist_ok=True)
        self._errors = folder / f"{name.replace(' ', '-')}.txt"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                text=True,
                start_new_session=True,  # Ctrl-C reaches only the parent, which ends the others
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -N if signal N ended it."""
        return self._process.poll()

    def write_line(self, line: str) -> None:
        """Write to its stdin; a process that has ended is ignored (see ``exit_code``)."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.write(f"{line}\n")
                self._process.stdin.flush()

    def read_line(self, timeout_seconds: float) -> str | None:
        """The next line of its stdout; None if the timeout passes first."""
        try:
            return self._lines.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    @property
    def has_lines(self) -> bool:
        """Whether ``read_line`` would return one at once."""
        return not self._lines.empty()

    def last_error(self) -> str:
        """The last line of its stderr; "" if there is none."""
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def terminate(self) -> None:
        """Send SIGTERM, so that it can close its files; ``wait`` gives it time for that."""
        self._process.terminate()

    def wait(self) -> None:
        """Wait until it has ended, and kill it if that takes too long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it at once, if it still runs, and read the rest of its stdout."""
        self._process.kill()
        self._process.wait(timeout=_END_SECONDS)
        self._reader.join(timeout=_END_SECONDS)
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def _read(self) -> None:
        """Read all lines as they come, so that ``read_line`` can have a timeout."""
        if self._process.stdout is not None:
            with self._process.stdout as lines:
                for line in lines:
                    self._lines.put(line)


def end_with_parent() -> None:
    """In a child that does not read its stdin: send itself SIGTERM when the parent ends."""
    threading.Thread(target=_terminate_at_end_of_stdin, daemon=True).start()


def _terminate_at_end_of_stdin() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def reserve_stdout() -> TextIO:
    """In a child: return stdout for its messages alone. What libraries print, as gloo does, goes
    to stderr."""
    messages = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return messages
