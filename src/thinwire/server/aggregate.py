"""``Aggregate``: which pushes count, and the updates they become. No I/O, no clock, no threads.

Versions count per piece. A push goes into the version that is open when it comes. With ``quorum``
pushes, or with those of all workers that are not absent, that version closes:
wanted = residual + (1 / workers) * (sum of its pushes, in the order of workers and steps), the
update is what the codec makes of it, and the residual is the rest. The weight is 1 / workers
whatever the quorum, so that all updates and residuals together are the mean of all gradients.

The same pushes in the same order give the same updates, bit for bit: a restarted server restores
its state by replaying its log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from thinwire.codec import registry
from thinwire.codec.dense import Float32
from thinwire.compressor.compressor import Compressor
from thinwire.errors import (
    CorruptPayloadError,
    NonFiniteError,
    RemoteProtocolError,
    UnknownCodecError,
)
from thinwire.feedback.base import LARGEST
from thinwire.files import Buffer
from thinwire.gradient.pieces import Piece
from thinwire.recipe import Recipe
from thinwire.server.counted_steps import CountedSteps
from thinwire.server.settings import Rules
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.messages import Push, Update


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the pieces of one push, by their numbers.

    ``stale`` ones are refused, and go back to the worker's residual; ``repeated`` ones were counted
    before.
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
    encoded: EncodedBytes

    @classmethod
    def of(cls, worker: int, step: int, push: Push, entry: Entry) -> Contribution:
        """One piece of a push, with a payload of its own."""
        encoded = entry.encoded.copied()
        return cls(worker, step, push.version, push.learning_rate, encoded)


class Aggregate:
    """The pieces that one server owns."""

    def __init__(
        self, recipe: Recipe, pieces: Mapping[int, Piece], rules: Rules, *, seed: int = 0
    ) -> None:
        """``pieces`` are by number, in the order of all pieces of the model."""
        self.rules = rules
        # The mean of pushes is the new momentum, also where workers are absent.
        self._shares_momentum = recipe.shares_momentum
        self.pieces = dict(pieces)
        self.versions = dict.fromkeys(pieces, 0)
        """The newest closed version of each piece."""
        self.counted: dict[tuple[int, int], CountedSteps] = {}
        """By worker and piece. Equal ones of a worker's last pushes are one object."""
        self._newest: dict[int, CountedSteps] = {}
        self.open: dict[int, list[Contribution]] = {number: [] for number in pieces}
        self.overflowed = 0
        """How many versions of pieces were not finite, and were dropped."""
        self.absent: set[int] = set()
        """Workers that are not waited for: they are done, or lost."""
        # A rank that no worker has: random numbers of its own, on every kind of server the same.
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

        Raises RemoteProtocolError for what a correct worker does not send, so that it is neither
        logged nor counted.
        """
        accepted, stale, repeated = [], [], []
        for entry in push.entries:
            self._check(worker, entry, push.version)
            counted = self.counted.get((worker, entry.piece))
            if counted is not None and counted.has(step):
                repeated.append(entry.piece)
            elif self._is_stale(entry.piece, push.version, counted):
                stale.append(entry.piece)
            else:
                accepted.append(entry.piece)
        return Verdict(tuple(accepted), tuple(stale), tuple(repeated))

    def count(
        self, worker: int, step: int, push: Push, verdict: Verdict | None = None
    ) -> list[Update]:
        """Count the pieces that are accepted; returns the updates of versions that closed.

        ``verdict`` is the result of ``judge``, if it was just called.
        """
        verdict = self.judge(worker, step, push) if verdict is None else verdict
        accepted = set(verdict.accepted)
        for entry in push.entries:
            if entry.piece in accepted:
                self.open[entry.piece].append(Contribution.of(worker, step, push, entry))
                self._note_counted(worker, entry.piece, step, push.version)
        return self._close_ready(entry.piece for entry in push.entries)

    def steps(self, worker: int) -> int:
        """The step after the newest one of a worker that was counted for any piece."""
        newest = (steps.step for (rank, _), steps in self.counted.items() if rank == worker)
        return max(newest, default=-1) + 1

    def leave(self, worker: int) -> list[Update]:
        """Stop waiting for a worker; returns the updates of versions that waited for it alone."""
        self.absent.add(worker)
        return self._close_ready(self.pieces)

    def enter(self, worker: int) -> None:
        """Wait for a worker again; if all were absent, for all of them."""
        if self._present():
            self.absent.discard(worker)
        else:
            self.absent.clear()

    def late(self) -> dict[int, list[int]]:
        """For each version that is open and has pushes: the workers that have not contributed."""
        late: dict[int, set[int]] = {}
        for number, pushes in self.open.items():
            if pushes:
                missing = self._present() - {push.worker for push in pushes}
                late.setdefault(self.versions[number] + 1, set()).update(missing)
        return {version: sorted(workers) for version, workers in sorted(late.items())}

    def _note_counted(self, worker: int, number: int, step: int, version: int) -> None:
        counted = CountedSteps.after(self.counted.get((worker, number)), step, version)
        if counted != self._newest.get(worker):
            self._newest[worker] = counted
        self.counted[worker, number] = self._newest[worker]

    def _forget(self, number: int) -> EncodedBytes:
        """An update of zeros for a version that is not finite, which would spoil all weights.

        Each push was finite, but numbers near the largest add up to more, and so do residuals that
        follow absurd learning rates. The residual of this piece is lost.
        """
        self.overflowed += 1
        piece = self.pieces[number]
        self.compressor.forget(piece)
        return EncodedBytes(Float32.wire_id, piece.numel, bytes(4 * piece.numel))

    def _present(self) -> set[int]:
        return set(range(self.rules.workers)) - self.absent

    def _is_stale(self, number: int, version: int, counted: CountedSteps | None) -> bool:
        """Too old, or the second one on the same version.

        A worker waits for a new version before it computes again, so it pushes once on each. But
        the process that replaces a lost one does not know what that one pushed last.
        """
        # Also true for all steps that were skipped.
        again = counted is not None and version <= counted.version
        return again or self.versions[number] - version > self.rules.staleness

    def _check(self, worker: int, entry: Entry, version: int) -> None:
        piece = self.pieces.get(entry.piece)
        if piece is None or entry.encoded.numel != piece.numel:
            expected = "is not served here" if piece is None else f"has {piece.numel} elements"
            raise RemoteProtocolError(
                f"push of worker {worker}: piece {entry.piece} with {entry.encoded.numel} "
                f"elements, but that {expected}"
            )
        if version > self.versions[entry.piece]:
            raise RemoteProtocolError(
                f"push of worker {worker}: computed on version {version} of {piece.name}, "
                f"the newest is {self.versions[entry.piece]}"
            )
        try:
            registry.check(entry.encoded.wire_id, entry.encoded.payload, entry.encoded.numel)
        except (CorruptPayloadError, UnknownCodecError) as error:
            raise RemoteProtocolError(f"push of worker {worker}, {piece.name}: {error}") from error
        if entry.encoded.wire_id == Float32.wire_id and _overflows(entry.encoded.payload):
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
        return bool(pushes and self.absent) and self._present() <= {push.worker for push in pushes}

    def _close(self, number: int) -> Entry:
        pushes = sorted(self.open[number], key=lambda push: (push.worker, push.step))
        self.open[number] = []
        newest = max(pushes, key=lambda push: (push.step, push.worker))
        answer: EncodedBytes | None = None
        with contextlib.suppress(NonFiniteError):
            answer = self.compressor.compress_sum(
                self.pieces[number],
                [push.encoded for push in pushes],
                weight=1 / (len(pushes) if self._shares_momentum else self.rules.workers),
                step=self.versions[number],
                learning_rate=newest.learning_rate,
            )
        if answer is None or _is_overflowed(answer):
            answer = self._forget(number)
        self.versions[number] += 1
        return Entry(number, answer)


def _is_overflowed(answer: EncodedBytes) -> bool:
    return answer.wire_id == Float32.wire_id and _overflows(memoryview(answer.payload))


def _overflows(payload: Buffer) -> bool:
    """Whether float32 values hold an inf, a nan, or something as large as one."""
    values = np.frombuffer(payload, np.float32)
    return bool(values.size) and not (values.min() >= -LARGEST and values.max() <= LARGEST)
