"""Updates that were made, for workers that were away: in the log, or for a while in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from thinwire.server.disk import Buffer
from thinwire.wire.frame import Frame, unpack
from thinwire.wire.messages import Update, decode

MOST_NBYTES = 256 << 20
"""What a server without a log remembers of its updates."""


class Past(Protocol):
    """The updates of a server. ``Log`` keeps them on disk, and what they follow from."""

    @property
    def since(self) -> int:
        """The lowest version that ``updates`` can follow."""

    def append(self, parts: Sequence[Buffer]) -> None:
        """Add the frame of an update to the next commit."""

    def commit(self) -> int:
        """Make all that was appended count."""

    def updates(self, *, after: int) -> Iterator[Frame]:
        """The updates of later versions than ``after``, by version."""


class ShortPast:
    """The newest updates, and nothing else: it ends with the process."""

    def __init__(self, most_nbytes: int = MOST_NBYTES) -> None:
        self.since = 0
        self._most_nbytes, self._nbytes = most_nbytes, 0
        self._updates: deque[tuple[int, Frame, int]] = deque()

    def append(self, parts: Sequence[Buffer]) -> None:
        frame = unpack(memoryview(b"".join(parts)))
        message = decode(frame)
        if isinstance(message, Update):
            self._updates.append((message.version, frame, len(frame.body)))
            self._nbytes += len(frame.body)
        while self._nbytes > self._most_nbytes:
            version, _, nbytes = self._updates.popleft()
            self.since, self._nbytes = max(self.since, version), self._nbytes - nbytes

    def commit(self) -> int:
        return 0

    def updates(self, *, after: int) -> Iterator[Frame]:
        found = [(version, frame) for version, frame, _ in self._updates if version > after]
        return (frame for _, frame in sorted(found, key=lambda one: one[0]))
