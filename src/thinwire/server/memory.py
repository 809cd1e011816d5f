"""What a server must not forget: in a log if it has one, and else for as long as it runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence

from thinwire.errors import LogError
from thinwire.server.aggregate import Aggregate
from thinwire.server.log import Log
from thinwire.server.past import Past, ShortPast
from thinwire.server.state import snapshot_of
from thinwire.wire.frame import DEFAULT_LIMITS, SERVER, Frame, pack
from thinwire.wire.messages import Message, Update, decode, encode

_logger = logging.getLogger(__name__)

_UPDATE_NBYTES, _ENTRY_NBYTES = 12, 14
"""Of a body: the version and a count, and the row of each entry."""


class Memory:
    """What was accepted and answered. ``run`` and ``epoch`` name it."""

    def __init__(self, log: Log | None) -> None:
        self._log = log
        self.past: Past = ShortPast() if log is None else log
        self.run = int.from_bytes(os.urandom(7), "little") + 1 if log is None else log.run
        self.epoch = 1 if log is None else log.epoch
        self._nbytes = 0
        """Of the log, since the last snapshot."""

    def frame(self, message: Message, *, worker: int = SERVER, step: int = 0) -> bytes:
        """The frame that says ``message``, by the server or in the name of a worker."""
        said = encode(message, run=self.run, epoch=self.epoch, worker=worker, step=step)
        return b"".join(pack(said))

    def keep(self, frame: bytes) -> None:
        """What a restart needs, with the next commit."""
        if self._log is not None:
            self._log.append([frame])
            self._nbytes += len(frame)

    def keep_update(self, update: Update) -> bytes:
        """For workers that are away, with the next commit; returns the frame to send."""
        frame = self.frame(update)
        self.past.append([frame])
        self._nbytes += len(frame)
        return frame

    def replayed(self, frame: Frame) -> None:
        """It was in the log, after the snapshot."""
        self._nbytes += len(frame.body)

    def commit(self) -> None:
        """Make all that was kept count: now it may be spoken of."""
        self.past.commit()

    def history(self, *, after: int, most_nbytes: int) -> Iterator[Update]:
        """Old updates by version, and only whole ones: about so many bytes of them."""
        self.commit()
        nbytes, version = 0, after
        for frame in self.past.updates(after=max(after, self.past.since)):
            update = decode(frame)
            if isinstance(update, Update):
                if update.version != version and nbytes > most_nbytes:
                    return
                version, nbytes = update.version, nbytes + len(frame.body)
                yield update

    def keep_state(self, aggregate: Aggregate, said: Sequence[Frame], *, every_nbytes: int) -> None:
        """Write a snapshot, if there was so much since the last one, or four times the state."""
        state_nbytes = 4 * sum(piece.numel for piece in aggregate.pieces.values())
        if self._log is not None and self._nbytes >= max(4 * state_nbytes, every_nbytes):
            snapshot = snapshot_of(aggregate, said, run=self.run, epoch=self.epoch)
            self._nbytes = 0
            try:
                self._log.snapshot(snapshot)
            except LogError as error:
                # If the log itself is meant, the next commit says so again.
                _logger.warning("%s; a restart will take longer", error)


def in_frames(updates: Iterable[Update]) -> Iterator[Update]:
    """The same updates, in so many that each fits into a frame."""
    most, most_nbytes = DEFAULT_LIMITS.max_entries, DEFAULT_LIMITS.max_body_nbytes
    for update in updates:
        first, nbytes = 0, _UPDATE_NBYTES
        for i, entry in enumerate(update.entries):
            nbytes += _ENTRY_NBYTES + len(entry.payload)
            if nbytes > most_nbytes or i - first == most:
                yield Update(update.version, update.entries[first:i])
                first, nbytes = i, _UPDATE_NBYTES + _ENTRY_NBYTES + len(entry.payload)
        yield Update(update.version, update.entries[first:])
