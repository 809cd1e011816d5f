"""``thinwire`` as a process of its own, for tests that send it signals. Waits have deadlines."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

DEADLINE_SECONDS = 90.0

_SIGNALS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""
"""They work, even if the tests were started by a shell that ignores them."""

_MAIN = """
from thinwire.cli.start import main
main()
"""

TERMINAL = """
import fcntl, termios
fcntl.ioctl(1, termios.TIOCSCTTY, 0)
"""
"""Makes stdout the terminal that this process belongs to: it gets SIGHUP when that is closed."""


class Command:
    """Runs within a ``with``, and is killed at its end or at the deadline. ``before`` is what its
    process does first."""

    def __init__(self, *arguments: str, before: str = "", stdout: int = subprocess.PIPE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SIGNALS + before + _MAIN, *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._deadline = threading.Timer(DEADLINE_SECONDS, self.process.kill)

    def __enter__(self) -> Command:
        self._deadline.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._deadline.cancel()
        self.process.kill()
        with self.process:
            self._deadline.join()

    def read_until(self, words: str) -> str:
        """All that it prints until a line has ``words`` in it."""
        assert self.process.stdout is not None
        read = ""
        for line in self.process.stdout:
            read += line
            if words in line:
                return read
        raise AssertionError(f"{words!r} did not come: {read}{self._errors()}")

    def _errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def end(self) -> tuple[int, str, str]:
        """Its exit code and the rest of what it prints, to stdout and stderr."""
        stdout, stderr = self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode, stdout, stderr


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in found.split()]


class Watched:
    """Processes of others, known for sure: a number may be given to a new one when they ended."""

    def __init__(self, pids: list[int]) -> None:
        self._handles = [os.pidfd_open(pid) for pid in pids]

    def __enter__(self) -> Watched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            if not _ended(handle, seconds=0):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)

    def end_within(self, seconds: float) -> bool:
        """Whether each of them does."""
        return all(_ended(handle, seconds=seconds) for handle in self._handles)


def _ended(handle: int, *, seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
