"""``Journal``: what a server must not forget, in a write-ahead log or, without one, in memory."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from operator import itemgetter
from typing import Protocol

from thinwire.errors import LogError
from thinwire.files import Buffer
from thinwire.server.aggregate import Aggregate
from thinwire.server.log.log import Log
from thinwire.server.snapshot_state import snapshot_of
from thinwire.wire.frame import SERVER, Frame, pack, unpack
from thinwire.wire.limits import DEFAULT_LIMITS
from thinwire.wire.messages import Message, Update, decode, encode

_logger = logging.getLogger(__name__)

_UPDATE_NBYTES, _ENTRY_NBYTES = 12, 14
"""Of an Update's body: its version and count, and the row of each entry."""

MOST_NBYTES = 256 << 20
"""Of updates that a server without a log keeps."""


class UpdateHistory(Protocol):
    """The updates of a server. ``Log`` keeps them on disk, with the pushes they follow from."""

    @property
    def since(self) -> int:
        """The lowest version that ``updates`` can follow."""

    def append(self, parts: Sequence[Buffer]) -> None:
        """Add the frame of an update to the next commit."""

    def commit(self) -> int:
        """Make all that was appended count."""

    def updates(self, *, after: int) -> Iterator[Frame]:
        """The updates of later versions than ``after``, by version."""


class InMemoryHistory:
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
        later = [(version, frame) for version, frame, _ in self._updates if version > after]
        return (frame for _, frame in sorted(later, key=itemgetter(0)))


class Journal:
    """What was accepted and answered, under the ``run`` and ``epoch`` of this start.

    Kept frames are durable after ``commit``, together or not at all: only then may a peer be told.
    Without a log only updates are kept, for workers that come back.
    """

    def __init__(self, log: Log | None = None) -> None:
        self._log = log
        self._history: UpdateHistory = InMemoryHistory() if log is None else log
        self.run = new_run() if log is None else log.run
        self.epoch = 1 if log is None else log.epoch
        self._nbytes = 0
        """Of the log, since the last snapshot."""

    @property
    def since(self) -> int:
        """The lowest version that ``history`` can follow."""
        return self._history.since

    def frame(self, message: Message, *, worker: int = SERVER, step: int = 0) -> bytes:
        """``message`` as a packed frame, from the server or in the name of a worker."""
        frame = encode(message, run=self.run, epoch=self.epoch, worker=worker, step=step)
        return b"".join(pack(frame))

    def keep(self, frame: bytes) -> None:
        """Keep what a restart must replay, with the next commit."""
        if self._log is not None:
            self._log.append([frame])
            self._nbytes += len(frame)

    def keep_update(self, update: Update) -> bytes:
        """Keep an update, with the next commit; returns the frame to send."""
        frame = self.frame(update)
        self._history.append([frame])
        self._nbytes += len(frame)
        return frame

    def replayed(self, frame: Frame) -> None:
        """Count a frame that was in the log after the snapshot."""
        self._nbytes += len(frame.body)

    def commit(self) -> None:
        """Make all that was kept durable."""
        self._history.commit()

    def history(self, *, after: int, most_nbytes: int) -> Iterator[Update]:
        """Whole versions of old updates, in order, about ``most_nbytes`` of them."""
        self.commit()
        nbytes, version = 0, after
        for frame in self._history.updates(after=max(after, self.since)):
            update = decode(frame)
            if isinstance(update, Update):
                if update.version != version and nbytes > most_nbytes:
                    return
                version, nbytes = update.version, nbytes + len(frame.body)
                yield update

    def keep_state(
        self,
        aggregate: Aggregate,
        handshake: Sequence[Frame],
        lost: Set[int],
        *,
        every_nbytes: int,
    ) -> None:
        """Write a snapshot if the log has grown by so much, and by four times the state."""
        state_nbytes = 4 * sum(piece.numel for piece in aggregate.pieces.values())
        if self._log is not None and self._nbytes >= max(4 * state_nbytes, every_nbytes):
            snapshot = snapshot_of(aggregate, handshake, lost, run=self.run, epoch=self.epoch)
            self._nbytes = 0
            try:
                self._log.snapshot(snapshot)
            except LogError as error:
                # If the log itself failed, the next commit raises it again.
                _logger.warning("%s; a restart will take longer", error)


def new_run() -> int:
    """A number that no other run has."""
    return int.from_bytes(os.urandom(7), "little") + 1


def in_frames(updates: Iterable[Update]) -> Iterator[Update]:
    """The same updates, split so that each fits into a frame."""
    most, most_nbytes = DEFAULT_LIMITS.max_entries, DEFAULT_LIMITS.max_body_nbytes
    for update in updates:
        first, nbytes = 0, _UPDATE_NBYTES
        for i, entry in enumerate(update.entries):
            nbytes += _ENTRY_NBYTES + len(entry.encoded.payload)
            if nbytes > most_nbytes or i - first == most:
                yield Update(update.version, update.entries[first:i])
                first, nbytes = i, _UPDATE_NBYTES + _ENTRY_NBYTES + len(entry.encoded.payload)
        yield Update(update.version, update.entries[first:])
