"""``main``: where the ``thinwire`` command starts. Ctrl-C during imports ends it quietly."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code of Ctrl-C in shells: 128 + SIGINT."""


def main() -> None:
    """Load the command, then run it."""
    with ending_at_once():
        from thinwire.cli.main import main as command
    command()


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process without a traceback: for imports, which take long."""
    usual = signal.getsignal(signal.SIGINT)
    if (
        usual is signal.default_int_handler
    ):  # else the shell ignores it, for a command in the background
        signal.signal(signal.SIGINT, _end)
    yield
    signal.signal(signal.SIGINT, usual)


def _end(number: int, frame: FrameType | None) -> None:
    # No KeyboardInterrupt: torch goes on without numpy if it comes while it imports that.
    os._exit(INTERRUPTED)
