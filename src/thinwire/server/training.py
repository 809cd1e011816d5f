"""What is trained, and how far it is: all that a log can tell again.

Who is connected just now is not known here, and nothing is sent.
"""

from __future__ import annotations

from thinwire.errors import RemoteProtocolError
from thinwire.model import Model
from thinwire.recipe import Recipe
from thinwire.server.aggregate import Aggregate
from thinwire.server.memory import Memory, in_frames
from thinwire.server.recovery import Recovery
from thinwire.server.rules import Rules
from thinwire.server.state import restore
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Describe, Join, Leave, Push, Reason, Update, decode


class Training:
    """Nothing, until a worker describes it."""

    def __init__(self, recipe: Recipe, rules: Rules, *, seed: int) -> None:
        self._recipe, self._rules, self._seed = recipe, rules, seed
        self.model: Model | None = None
        self.aggregate: Aggregate | None = None
        self.described: Frame | None = None
        self.checksums: tuple[int, ...] = ()
        """Of the weights of version 0."""
        self.lost: set[int] = set()
        """Workers that nobody waits for although they did not say that they are done."""
        self._began: Frame | None = None
        """The Join of the worker whose weights those are."""

    @property
    def version(self) -> int:
        """The newest one that all pieces have reached."""
        return 0 if self.aggregate is None else self.aggregate.version

    def running(self) -> Aggregate:
        if self.aggregate is None:
            raise RemoteProtocolError("nobody has described what is trained")
        return self.aggregate

    def adopt(self, description: Describe, described: Frame) -> None:
        """Train this."""
        self.model, self.described = Model(description, self._rules.workers), described
        self.aggregate = Aggregate(self._recipe, self.model.own(), self._rules, seed=self._seed)

    def enter(self, join: Join, frame: Frame) -> None:
        """A worker that comes back, or one that says the first weights."""
        self.running().enter(frame.worker)
        self.lost.discard(frame.worker)
        if join.checksums:
            self._began, self.checksums = frame, join.checksums

    def leave(self, worker: int, reason: Reason) -> list[Update]:
        """Go on without a worker; returns what waited for nobody else."""
        if reason is Reason.LOST:
            self.lost.add(worker)
        return self.running().leave(worker)

    def said(self) -> list[Frame]:
        """What a snapshot must hold beside the state: what is trained, and from which weights."""
        return [frame for frame in (self.described, self._began) if frame is not None]

    def recover(self, recovery: Recovery, memory: Memory) -> None:
        """Count again what was logged before a restart.

        Updates follow from pushes. One that was made but not logged any more is logged now.
        """
        if recovery.snapshot is not None:
            for frame in recovery.snapshot.pending:
                if frame.kind != Push.kind:
                    self._again(frame)
            restore(self.running(), recovery.snapshot)
        missing: dict[tuple[int, ...], Update] = {}
        for frame in recovery.frames():
            memory.replayed(frame)
            message = decode(frame)
            if isinstance(message, Update):
                missing.pop(_name(message), None)
            else:
                missing |= {_name(part): part for part in in_frames(self._again(frame))}
        for update in missing.values():
            memory.keep_update(update)
        memory.commit()

    def _again(self, frame: Frame) -> list[Update]:
        """What a logged frame did when it came."""
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


def _name(update: Update) -> tuple[int, ...]:
    """The version and the pieces of an update: no other has the same."""
    return (update.version, *(entry.piece for entry in update.entries))
