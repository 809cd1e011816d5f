"""Which pushes count, and what they become. No I/O, no clock, no threads.

Versions count per piece. A push goes into the version that is open when it comes. With ``quorum``
pushes, or with those of all workers that are not absent, that version closes:
wanted = residual + (1 / workers) * (sum of its pushes, in the order of workers and steps), the
update is what the codec makes of it, and the residual is the rest. The weight is 1 / workers
whatever the quorum, so that all updates and residuals together are the mean of all gradients.

The same pushes in the same order give the same updates, bit for bit: so a restarted server gets
back to where it was by counting what its log holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from thinwire.codec import registry
from thinwire.codec.dense import Float32
from thinwire.compressor import Compressor
from thinwire.encoded import Encoded
from thinwire.errors import (
    CorruptPayloadError,
    NonFiniteError,
    RemoteProtocolError,
    UnknownCodecError,
)
from thinwire.feedback.base import LARGEST
from thinwire.gradient.pieces import Piece
from thinwire.recipe import Recipe
from thinwire.server.rules import Rules
from thinwire.wire.body import Entry
from thinwire.wire.messages import Push, Update

MOST_SKIPPED = 256
"""How many steps back it is known which were counted: far more than are ever on their way."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the pieces of one push, by their numbers.

    Those that are ``stale`` go back to the worker; ``repeated`` ones were counted before.
    """

    accepted: tuple[int, ...]
    stale: tuple[int, ...]
    repeated: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Contribution:
    """One worker's push of one piece, as it came."""

    worker: int
    step: int
    version: int
    learning_rate: float
    encoded: Encoded

    @classmethod
    def of(cls, worker: int, step: int, push: Push, entry: Entry) -> Contribution:
        """One piece of a push, with a payload of its own."""
        encoded = Encoded(entry.codec, entry.numel, bytes(entry.payload))
        return cls(worker, step, push.version, push.learning_rate, encoded)


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest push of a worker that was counted: its step, and the version it was made on.

    ``skipped`` are steps before it that were not. A worker may not have heard that one of them was
    refused, and sends it again: it must not be told that it was counted.
    """

    step: int
    version: int
    skipped: tuple[int, ...] = ()

    @classmethod
    def after(cls, before: Mark | None, step: int, version: int) -> Mark:
        """The mark of a push that is counted."""
        oldest = step - MOST_SKIPPED
        last, skipped = (-1, ()) if before is None else (before.step, before.skipped)
        kept = (one for one in skipped if one >= oldest)
        return cls(step, version, (*kept, *range(max(last + 1, oldest), step)))


class Aggregate:
    """The pieces that one server owns."""

    def __init__(
        self, recipe: Recipe, pieces: Mapping[int, Piece], rules: Rules, *, seed: int = 0
    ) -> None:
        """``pieces`` are by number, in the order of all pieces of the model."""
        self.rules = rules
        self.pieces = dict(pieces)
        self.versions = dict.fromkeys(pieces, 0)
        """The newest closed version of each piece."""
        self.marks: dict[tuple[int, int], Mark] = {}
        """By worker and piece."""
        self.open: dict[int, list[Contribution]] = {number: [] for number in pieces}
        self.spoilt = 0
        """How many versions of pieces were not finite, and were thrown away."""
        self.absent: set[int] = set()
        """Workers that nobody waits for: they are done, or lost."""
        # The random numbers of no worker, and the same whoever plays the server.
        self.compressor = Compressor(
            recipe.pull,
            recipe.pull_feedback,
            seed=seed,
            rank=rules.workers,
            workers=rules.workers,
        )

    @property
    def version(self) -> int:
        """The newest version that is closed for all pieces."""
        return min(self.versions.values(), default=0)

    def judge(self, worker: int, step: int, push: Push) -> Verdict:
        """What counting this push would do. Changes nothing.

        Raises RemoteProtocolError for what an honest worker does not send, so that it is neither
        logged nor counted.
        """
        accepted, stale, repeated = [], [], []
        for entry in push.entries:
            self._check(worker, entry, push.version)
            mark = self.marks.get((worker, entry.piece))
            if mark is not None and step <= mark.step and step not in mark.skipped:
                repeated.append(entry.piece)
            elif self._is_stale(entry.piece, push.version, mark):
                stale.append(entry.piece)
            else:
                accepted.append(entry.piece)
        return Verdict(tuple(accepted), tuple(stale), tuple(repeated))

    def count(
        self, worker: int, step: int, push: Push, verdict: Verdict | None = None
    ) -> list[Update]:
        """Count the pieces that are accepted; returns the updates of versions that closed.

        ``verdict`` is what ``judge`` has just said, if it was asked.
        """
        verdict = self.judge(worker, step, push) if verdict is None else verdict
        accepted = set(verdict.accepted)
        for entry in push.entries:
            if entry.piece in accepted:
                self.open[entry.piece].append(Contribution.of(worker, step, push, entry))
                before = self.marks.get((worker, entry.piece))
                self.marks[worker, entry.piece] = Mark.after(before, step, push.version)
        return self._close_ready(entry.piece for entry in push.entries)

    def steps(self, worker: int) -> int:
        """How many steps of a worker were counted, be it only with some pieces."""
        marks = (mark.step + 1 for (who, _), mark in self.marks.items() if who == worker)
        return max(marks, default=0)

    def leave(self, worker: int) -> list[Update]:
        """Wait for this worker no more; returns the updates of versions that waited for it only."""
        self.absent.add(worker)
        return self._close_ready(self.pieces)

    def enter(self, worker: int) -> None:
        """Wait for this worker again. If nobody was left it is the first of all that come back."""
        if self._present():
            self.absent.discard(worker)
        else:
            self.absent.clear()

    def late(self) -> dict[int, list[int]]:
        """For each version that is open and has pushes: the workers that have not contributed."""
        found: dict[int, set[int]] = {}
        for number, pushes in self.open.items():
            if pushes:
                missing = self._present() - {one.worker for one in pushes}
                found.setdefault(self.versions[number] + 1, set()).update(missing)
        return {version: sorted(workers) for version, workers in sorted(found.items())}

    def _forget(self, number: int) -> Encoded:
        """What to answer if a version is not finite, so that no weights are spoilt: nothing.

        Each push was finite, but numbers near the largest add up to more, and so do residuals that
        follow learning rates that no training has. What was owed for this piece is lost.
        """
        self.spoilt += 1
        piece = self.pieces[number]
        self.compressor.forget(piece)
        return Encoded(Float32.wire_id, piece.numel, bytes(4 * piece.numel))

    def _present(self) -> set[int]:
        return set(range(self.rules.workers)) - self.absent

    def _is_stale(self, number: int, version: int, mark: Mark | None) -> bool:
        """Too old, or the second one on the same version.

        A worker waits for a new version before it computes again, so it pushes once on each. But
        the process that takes the place of a lost one does not know what that one pushed last.
        """
        again = mark is not None and version <= mark.version  # true for all that were skipped
        return again or self.versions[number] - version > self.rules.staleness

    def _check(self, worker: int, entry: Entry, version: int) -> None:
        piece = self.pieces.get(entry.piece)
        if piece is None or entry.numel != piece.numel:
            expected = "is not served here" if piece is None else f"has {piece.numel} elements"
            raise RemoteProtocolError(
                f"push of worker {worker}: piece {entry.piece} with {entry.numel} elements, "
                f"but that {expected}"
            )
        if version > self.versions[entry.piece]:
            raise RemoteProtocolError(
                f"push of worker {worker}: computed on version {version} of {piece.name}, "
                f"the newest is {self.versions[entry.piece]}"
            )
        try:
            registry.check(entry.codec, entry.payload, entry.numel)
        except (CorruptPayloadError, UnknownCodecError) as error:
            raise RemoteProtocolError(f"push of worker {worker}, {piece.name}: {error}") from error
        if entry.codec == Float32.wire_id and _overflows(entry.payload):
            raise RemoteProtocolError(
                f"push of worker {worker}, {piece.name}: an inf, a nan or an overflow, which would "
                "spoil the weights of all"
            )

    def _close_ready(self, numbers: Iterable[int]) -> list[Update]:
        closed: dict[int, list[Entry]] = {}
        for number in numbers:
            if self._is_ready(number):
                answer = self._close(number)
                closed.setdefault(self.versions[number], []).append(answer)
        return [Update(version, tuple(entries)) for version, entries in sorted(closed.items())]

    def _is_ready(self, number: int) -> bool:
        pushes = self.open[number]
        if len(pushes) >= self.rules.quorum:
            return True
        return bool(pushes and self.absent) and self._present() <= {one.worker for one in pushes}

    def _close(self, number: int) -> Entry:
        pushes = sorted(self.open[number], key=lambda one: (one.worker, one.step))
        self.open[number] = []
        newest = max(pushes, key=lambda one: (one.step, one.worker))
        try:
            answer = self.compressor.compress_sum(
                self.pieces[number],
                [one.encoded for one in pushes],
                weight=1 / self.rules.workers,
                step=self.versions[number],
                learning_rate=newest.learning_rate,
            )
        except NonFiniteError:
            answer = None
        if answer is None or _is_spoilt(answer):
            answer = self._forget(number)
        self.versions[number] += 1
        return Entry(number, answer.wire_id, answer.numel, memoryview(answer.payload))


def _is_spoilt(answer: Encoded) -> bool:
    return answer.wire_id == Float32.wire_id and _overflows(memoryview(answer.payload))


def _overflows(payload: memoryview) -> bool:
    """Whether float32 values hold an inf, a nan, or something as large as one."""
    values = np.frombuffer(payload, np.float32)
    return bool(values.size) and not (values.min() >= -LARGEST and values.max() <= LARGEST)
