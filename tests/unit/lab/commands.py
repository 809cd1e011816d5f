"""``output_of``: what a program of the system prints, within a deadline."""

from __future__ import annotations

import subprocess

DEADLINE_SECONDS = 100.0


def output_of(*command: str) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=DEADLINE_SECONDS
    ).stdout
