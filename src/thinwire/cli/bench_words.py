"""What the tables of all benchmarks say alike."""

from __future__ import annotations

BUSY = 0.1
"""The part of the machine that others may have had before a report warns of it."""


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.{1 if seconds < 0.1 else 0}f}"


def closing(machine: object, *, interrupted: bool, others: float) -> str:
    """Where it was measured, and what speaks against the numbers."""
    parts = [f"Measured on {machine}."]
    if interrupted:
        parts.append("It was interrupted: some rounds are missing.")
    if others > BUSY:
        parts.append(
            f"Other processes had {others:.0%} of the machine meanwhile: repeat the run when it is "
            "quiet."
        )
    return " ".join(parts)
