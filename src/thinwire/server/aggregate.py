"""Which pushes count, and what they become. No I/O, no clock, no threads.

Versions count per piece. A push goes into the version that is open when it comes. With ``quorum``
pushes that version closes: wanted = residual + (1 / workers) * (sum of its pushes, in the order of
workers and steps), the update is what the codec makes of it, and the residual is the rest. The
weight is 1 / workers whatever the quorum, so that all updates and residuals together are the mean
of all gradients.

The same pushes in the same order give the same updates, bit for bit: so a restarted server gets
back to where it was by counting what its log holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thinwire.codec import registry
from thinwire.compressor import Compressor, Encoded
from thinwire.errors import CorruptPayloadError, RemoteProtocolError, UnknownCodecError
from thinwire.gradient.pieces import Piece
from thinwire.recipe import Recipe
from thinwire.server.rules import Rules
from thinwire.wire.body import Entry
from thinwire.wire.messages import Push, Update


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the pieces of one push, by their numbers."""

    accepted: tuple[int, ...]
    stale: tuple[int, ...]
    repeated: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Contribution:
    """One worker's push of one piece, as it came."""

    worker: int
    step: int
    learning_rate: float
    encoded: Encoded


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest push of a worker that was counted: its step, and the version it was made on."""

    step: int
    version: int


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
            if mark is not None and step <= mark.step:
                repeated.append(entry.piece)
            elif self.versions[entry.piece] - push.version > self.rules.staleness:
                stale.append(entry.piece)
            else:
                self._check_newer(worker, entry.piece, push.version, mark)
                accepted.append(entry.piece)
        return Verdict(tuple(accepted), tuple(stale), tuple(repeated))

    def count(self, worker: int, step: int, push: Push) -> list[Update]:
        """Count the pieces that ``judge`` accepts; returns the updates of versions that closed."""
        accepted = set(self.judge(worker, step, push).accepted)
        closed: dict[int, list[Entry]] = {}
        for entry in push.entries:
            if entry.piece in accepted:
                self._add(worker, step, push, entry)
                if len(self.open[entry.piece]) == self.rules.quorum:
                    answer = self._close(entry.piece)
                    closed.setdefault(self.versions[entry.piece], []).append(answer)
        return [Update(version, tuple(entries)) for version, entries in sorted(closed.items())]

    def late(self) -> dict[int, list[int]]:
        """For each version that is open and has pushes: the workers that have not contributed."""
        everyone = set(range(self.rules.workers))
        return {
            self.versions[number] + 1: sorted(everyone - {one.worker for one in pushes})
            for number, pushes in self.open.items()
            if pushes
        }

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

    def _check_newer(self, worker: int, number: int, version: int, mark: Mark | None) -> None:
        """A worker waits for a new version before it computes again, so it pushes once on each."""
        if mark is not None and version <= mark.version:
            raise RemoteProtocolError(
                f"push of worker {worker}: a second one computed on version {version} of "
                f"{self.pieces[number].name}"
            )

    def _add(self, worker: int, step: int, push: Push, entry: Entry) -> None:
        encoded = Encoded(entry.codec, entry.numel, bytes(entry.payload))
        self.open[entry.piece].append(Contribution(worker, step, push.learning_rate, encoded))
        self.marks[worker, entry.piece] = Mark(step, push.version)

    def _close(self, number: int) -> Entry:
        pushes = sorted(self.open[number], key=lambda one: (one.worker, one.step))
        self.open[number] = []
        newest = max(pushes, key=lambda one: (one.step, one.worker))
        answer = self.compressor.compress_sum(
            self.pieces[number],
            [one.encoded for one in pushes],
            weight=1 / self.rules.workers,
            step=self.versions[number],
            learning_rate=newest.learning_rate or None,
        )
        self.versions[number] += 1
        return Entry(number, answer.wire_id, answer.numel, memoryview(answer.payload))


def numbered(pieces: Iterable[Piece], owned: Iterable[int]) -> dict[int, Piece]:
    """The pieces with these numbers."""
    every = list(pieces)
    return {number: every[number] for number in owned}
