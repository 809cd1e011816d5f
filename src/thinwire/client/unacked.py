"""``Unacked``: pushes that a server has not acknowledged yet, to be sent again after a break."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from thinwire.wire.body import Entry
from thinwire.wire.messages import Push


class Unacked:
    """Pushes by step. Not locked: the session that owns it does that."""

    def __init__(self) -> None:
        self._pushes: dict[int, list[Push]] = {}

    def __bool__(self) -> bool:
        return bool(self._pushes)

    def __contains__(self, step: int) -> bool:
        return step in self._pushes

    def __iter__(self) -> Iterator[tuple[int, Push]]:
        """Each with its step, in order."""
        return ((step, push) for step in self.steps() for push in self._pushes[step])

    def steps(self) -> list[int]:
        return sorted(self._pushes)

    def add(self, step: int, push: Push) -> None:
        self._pushes.setdefault(step, []).append(push)

    def withdraw(self, step: int, pieces: set[int]) -> list[Entry]:
        """Do not send these again. Returns those that were still waiting for an answer."""
        withdrawn, kept = [], []
        for push in self._pushes.pop(step, []):
            withdrawn += [entry for entry in push.entries if entry.piece in pieces]
            rest = tuple(entry for entry in push.entries if entry.piece not in pieces)
            if rest:
                kept.append(replace(push, entries=rest))
        if kept:
            self._pushes[step] = kept
        return withdrawn
