"""Updates as they come, until a version is there as a whole."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from thinwire.compressor import Encoded
from thinwire.errors import TransportTimeout
from thinwire.gradient.pieces import Piece
from thinwire.wire.messages import Refusal, Update


class Arrivals:
    """What servers said. Their threads put it here; the training script takes it out."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = list(pieces)
        self._changed = threading.Condition()
        self._versions: dict[int, dict[int, Encoded]] = {}
        self._refused: list[tuple[int, Refusal]] = []
        self._error: BaseException | None = None
        self.version = 0
        """The last one that was taken."""

    def update(self, update: Update) -> None:
        with self._changed:
            if update.version > self.version:
                into = self._versions.setdefault(update.version, {})
                for entry in update.entries:
                    into[entry.piece] = Encoded(entry.codec, entry.numel, bytes(entry.payload))
                self._changed.notify_all()

    def refused(self, step: int, refusal: Refusal) -> None:
        with self._changed:
            self._refused.append((step, refusal))

    def failed(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def applied(self) -> int:
        return self.version

    def take_refused(self) -> list[tuple[int, Refusal]]:
        with self._changed:
            taken, self._refused = self._refused, []
            return taken

    def wait_for_next(self, *, deadline_seconds: float) -> None:
        """Wait until the next version is there as a whole; raise what went wrong instead."""
        wanted = self.version + 1
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or self._is_whole(wanted), timeout=deadline_seconds
            )
            if self._error is not None:
                raise self._error
            if not self._is_whole(wanted):
                there = self._versions.get(wanted, {})
                missing = [p.name for i, p in enumerate(self._pieces) if i not in there]
                raise TransportTimeout(
                    f"version {wanted} did not come within {deadline_seconds:g} s: "
                    f"{', '.join(missing[:5])} and {max(0, len(missing) - 5)} more are missing"
                )

    def take_next(self) -> list[Encoded] | None:
        """The next version, by number of piece, if it is there as a whole."""
        with self._changed:
            if not self._is_whole(self.version + 1):
                return None
            self.version += 1
            found = self._versions.pop(self.version)
            return [found[number] for number in range(len(self._pieces))]

    def _is_whole(self, version: int) -> bool:
        return len(self._versions.get(version, {})) == len(self._pieces)
