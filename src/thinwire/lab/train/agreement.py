"""How the processes of a run agree on the step to stop after: by files in a folder they share.

Whoever started them asks. Rank 0 looks before each step, and writes down the number of that step
before it sends anything of it. Nobody can finish a step without rank 0, so whoever has finished
that one can read the number.
"""

from __future__ import annotations

from pathlib import Path

_ASKED, _STEP = "stop", "stop-after"


class Agreement:
    """See ``Stop``."""

    def __init__(self, folder: Path, *, rank: int) -> None:
        self._asked, self._step = folder / _ASKED, folder / _STEP
        self._rank = rank

    def ask(self) -> None:
        """Let the run stop soon."""
        self._asked.touch()

    def before(self, step: int) -> None:
        if self._rank == 0 and self._asked.exists() and not self._step.exists():
            fresh = self._step.with_suffix(".new")
            fresh.write_text(str(step + 1))
            fresh.rename(self._step)

    def after(self, done: int) -> bool:
        return self._step.exists() and done >= int(self._step.read_text())
