"""A terminal that is closed while something runs: printing goes nowhere instead of failing."""

from __future__ import annotations

import os
import select

_CLOSING_MILLISECONDS = 250
"""Whoever reads a pipe gets the same signal as we do, and may take a moment longer to end."""


def silence_closed() -> None:
    """Turn stdout and stderr away from a terminal or a pipe that nobody reads any more. Files and
    those that are read stay as they are."""
    for output in (1, 2):
        poll = select.poll()
        poll.register(output, 0)  # nothing but its end is waited for
        if poll.poll(_CLOSING_MILLISECONDS):
            _turn_away(output)


def _turn_away(output: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output)
    os.close(nowhere)
