"""Where the ``thinwire`` command begins: Ctrl-C while it loads ends it at once, without a word.

A package of its own, because whatever is in ``thinwire`` loads torch first, which takes seconds.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_INTERRUPTED = 130
"""As in ``thinwire.cli.main``, which is not there yet."""


def main() -> None:
    """Load the command, then run it."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # else a shell has it ignored, for the background
        signal.signal(signal.SIGINT, _end)
    from thinwire.cli.main import main as command

    signal.signal(signal.SIGINT, usual)
    command()


def _end(number: int, frame: FrameType | None) -> None:
    # No KeyboardInterrupt: torch goes on without numpy if it comes while it imports that.
    os._exit(_INTERRUPTED)
