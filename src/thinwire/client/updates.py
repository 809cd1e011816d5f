"""``Updates``: what servers send, kept until a version is there as a whole."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from thinwire.errors import TransportTimeout, WorkerLost
from thinwire.gradient.pieces import Piece
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.messages import Late, Update


class Updates:
    """Updates and refusals. The threads of sessions add them; the training takes them out."""

    def __init__(self, pieces: Sequence[Piece], *, version: int) -> None:
        """``version`` is the last one that was applied."""
        self._pieces = pieces
        self._changed = threading.Condition()
        self._versions: dict[int, dict[int, EncodedBytes]] = {}
        self._refused: list[Entry] = []
        self._late: Late | None = None
        self._error: BaseException | None = None
        self.version = version
        self.refused_pieces = 0

    def add(self, update: Update) -> None:
        """Keep it, unless it is applied already: an update that is sent twice counts once."""
        with self._changed:
            if update.version > self.version:
                into = self._versions.setdefault(update.version, {})
                for entry in update.entries:
                    into[entry.piece] = entry.encoded.copied()
                self._changed.notify_all()

    def refused(self, entries: Collection[Entry]) -> None:
        with self._changed:
            self._refused += entries
            self.refused_pieces += len(entries)

    def late(self, late: Late) -> None:
        with self._changed:
            self._late = late

    def failed(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def applied(self) -> int:
        return self.version

    def received(self) -> int:
        everything = range(len(self._pieces))
        with self._changed:
            version = self.version
            while self._has(version + 1, everything):
                version += 1
            return version

    def take_refused(self) -> list[Entry]:
        with self._changed:
            taken, self._refused = self._refused, []
            return taken

    def wait_for(
        self, version: int, numbers: Collection[int], *, step: int, deadline_seconds: float
    ) -> None:
        """Wait until these pieces of a version are there; raise what went wrong instead."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or self._has(version, numbers),
                timeout=deadline_seconds,
            )
            if self._error is not None:
                raise self._error
            if not self._has(version, numbers):
                raise self._missing(version, numbers, step, deadline_seconds)

    def take(self, version: int, numbers: Sequence[int]) -> list[EncodedBytes]:
        """These pieces of a version, which are there. They stay until that is applied."""
        with self._changed:
            pieces = self._versions[version]
            return [pieces[number] for number in numbers]

    def applied_all(self, version: int) -> None:
        """All pieces up to this version were taken, and are in the weights."""
        with self._changed:
            self.version = version
            for old in [kept for kept in self._versions if kept <= version]:
                del self._versions[old]

    def has_next(self) -> bool:
        """Whether the next version is there as a whole."""
        with self._changed:
            return self._has(self.version + 1, range(len(self._pieces)))

    def _has(self, version: int, numbers: Collection[int]) -> bool:
        there = self._versions.get(version, {})
        if len(numbers) == len(self._pieces):
            return len(there) == len(self._pieces)
        return all(number in there for number in numbers)

    def _missing(
        self, version: int, numbers: Collection[int], step: int, seconds: float
    ) -> TransportTimeout | WorkerLost:
        there = self._versions.get(version, {})
        missing = [self._pieces[number].name for number in numbers if number not in there]
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        text = (
            f"step {step}: version {version} of {', '.join(missing[:3])}{more} did not come within "
            f"{seconds:g} s"
        )
        if self._late is not None and self._late.version == version:
            names = ", ".join(map(str, self._late.workers))
            return WorkerLost(f"{text}: the servers wait for workers {names}")
        return TransportTimeout(f"{text}, and no server sent a reason")
