"""``Training``: what is trained, and how far it is: the state that a log can restore.

It knows no connections, and sends nothing.
"""

from __future__ import annotations

from thinwire.errors import RemoteProtocolError
from thinwire.model import Model
from thinwire.recipe import Recipe
from thinwire.server.aggregate import Aggregate
from thinwire.server.journal import Journal, in_frames
from thinwire.server.log.recovery import Recovery
from thinwire.server.settings import Rules
from thinwire.server.snapshot_state import lost_in, restore
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Describe, Join, Leave, Push, Reason, Update, decode


class Training:
    """Empty until a worker describes the model."""

    def __init__(self, recipe: Recipe, rules: Rules, *, seed: int) -> None:
        self._recipe, self._rules, self._seed = recipe, rules, seed
        self.model: Model | None = None
        self.aggregate: Aggregate | None = None
        self.described: Frame | None = None
        self.checksums: tuple[int, ...] = ()
        """Of the weights of version 0."""
        self.lost: set[int] = set()
        """Workers that left without being done, and are not waited for."""
        self._first_join: Frame | None = None
        """The Join with those checksums."""

    @property
    def version(self) -> int:
        """The newest version that all pieces have reached."""
        return 0 if self.aggregate is None else self.aggregate.version

    @property
    def is_over(self) -> bool:
        """Whether all workers are done, or lost."""
        return self.aggregate is not None and len(self.aggregate.absent) == self._rules.workers

    @property
    def has_pushes(self) -> bool:
        """Whether a push was ever counted."""
        return self.aggregate is not None and bool(self.aggregate.counted)

    def running(self) -> Aggregate:
        """The aggregate. Raises RemoteProtocolError before there is a model."""
        if self.aggregate is None:
            raise RemoteProtocolError("no worker has described what is trained")
        return self.aggregate

    def adopt(self, description: Describe, described: Frame) -> None:
        """Begin to train this model."""
        self.model, self.described = Model(description, self._rules.workers), described
        pieces = self.model.owned_pieces()
        self.aggregate = Aggregate(self._recipe, pieces, self._rules, seed=self._seed)

    def enter(self, join: Join, frame: Frame) -> None:
        """Take up a worker that comes back, or one whose weights the training begins with."""
        self.running().enter(frame.worker)
        self.lost &= self.running().absent
        if join.checksums:
            self._first_join, self.checksums = frame, join.checksums

    def leave(self, worker: int, reason: Reason) -> list[Update]:
        """Go on without a worker; returns the updates of versions that waited for it alone."""
        if reason is Reason.LOST:
            self.lost.add(worker)
        return self.running().leave(worker)

    def handshake(self) -> list[Frame]:
        """Describe and first Join, which a snapshot must hold beside the state."""
        return [frame for frame in (self.described, self._first_join) if frame is not None]

    def recover(self, recovery: Recovery, journal: Journal) -> None:
        """Replay the log after a restart.

        Updates follow from pushes. One that was made but not logged any more is logged now.
        """
        if recovery.snapshot is not None:
            for frame in recovery.snapshot.pending:
                if frame.kind != Push.kind:
                    self._replay(frame)
            restore(self.running(), recovery.snapshot)
            self.lost = lost_in(recovery.snapshot)
        missing: dict[tuple[int, ...], Update] = {}
        for frame in recovery.frames():
            journal.replayed(frame)
            message = decode(frame)
            if isinstance(message, Update):
                missing.pop(_identity(message), None)
            else:
                missing |= {_identity(part): part for part in in_frames(self._replay(frame))}
        for update in missing.values():
            journal.keep_update(update)
        journal.commit()

    def _replay(self, frame: Frame) -> list[Update]:
        """Do what a logged frame did when it came."""
        message = decode(frame)
        if isinstance(message, Describe):
            self.adopt(message, frame)
        elif isinstance(message, Push):
            return self.running().count(frame.worker, frame.step, message)
        elif isinstance(message, Leave):
            return self.leave(frame.worker, message.reason)
        elif isinstance(message, Join):
            self.enter(message, frame)
        return []


def _identity(update: Update) -> tuple[int, ...]:
    """Version and pieces of an update: no other has the same."""
    return (update.version, *(entry.piece for entry in update.entries))
