"""What is measured: a piece of work, and what else does the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a benchmark.

    ``plain`` and ``tuned`` do the same work with torch (see ``torch_ops``). A case that runs on
    several ``threads`` names the case that does it on one in ``one_thread``. Work that returns a
    payload, which is a bytearray or a memoryview, has its bits counted; where the payload is sparse
    and ``value_nbytes`` says how long a value is, those of the indices too.
    """

    name: str
    work: Work
    plain: Work | None = None
    tuned: Work | None = None
    threads: int = 1
    one_thread: str | None = None
    value_nbytes: int | None = None

    def variants(self) -> dict[str, Work]:
        """All the work to time: ours and torch's."""
        named = {"ours": self.work, "plain": self.plain, "tuned": self.tuned}
        return {name: work for name, work in named.items() if work is not None}
