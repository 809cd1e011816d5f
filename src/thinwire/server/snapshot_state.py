"""``snapshot_of`` and ``restore``: the state of an Aggregate as a Snapshot, and back."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import groupby
from operator import itemgetter

from thinwire.errors import LogError
from thinwire.server.aggregate import Aggregate, Contribution
from thinwire.server.counted_steps import MOST_SKIPPED, CountedSteps
from thinwire.server.log.snapshot import Snapshot
from thinwire.wire.body import Entry
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Describe, Join, Push, decode, encode

_WORDS, _WORD = MOST_SKIPPED // 64, (1 << 64) - 1
"""A counter has 64 bits."""


def snapshot_of(
    aggregate: Aggregate,
    handshake: Sequence[Frame],
    lost: Set[int] = frozenset(),
    *,
    run: int,
    epoch: int,
) -> Snapshot:
    """``handshake``: the Describe of the run, and its first Join if that has checksums, because
    the log may have deleted them. ``lost`` are the absent workers that are not done.
    """
    absent = {f"absent {worker}": 1 for worker in sorted(aggregate.absent)}
    return Snapshot(
        run,
        epoch,
        buffers=aggregate.compressor.state_dict(),
        versions={str(number): version for number, version in aggregate.versions.items()},
        counters=_counters(aggregate) | absent | {f"lost {worker}": 1 for worker in sorted(lost)},
        pending=(*handshake, *_pushes(aggregate, run=run, epoch=epoch)),
    )


def lost_in(snapshot: Snapshot) -> set[int]:
    """The workers that were lost; earlier releases did not store them."""
    return _workers("lost", snapshot.counters)


def restore(aggregate: Aggregate, snapshot: Snapshot) -> None:
    """Give a new aggregate of the same model and rules the state of a snapshot."""
    aggregate.compressor.load_state_dict(snapshot.buffers)
    aggregate.versions.update({int(n): version for n, version in snapshot.versions.items()})
    aggregate.counted.update(_restored(aggregate, snapshot.counters))
    aggregate.absent.update(_workers("absent", snapshot.counters))
    for frame in snapshot.pending:
        message = decode(frame)
        if isinstance(message, Describe | Join):
            continue  # for Training
        if not isinstance(message, Push):
            raise LogError(f"snapshot: a {type(message).__name__} among the pushes")
        for entry in message.entries:
            pushes = aggregate.open[entry.piece]
            pushes.append(Contribution.of(frame.worker, frame.step, message, entry))


def _workers(kind: str, counters: Iterable[str]) -> set[int]:
    """The workers that have a counter of this kind."""
    return {int(name.split()[1]) for name in counters if name.startswith(f"{kind} ")}


def _counters(aggregate: Aggregate) -> dict[str, int]:
    """By worker, and by first and last piece of those with the same counted steps."""
    counters: dict[str, int] = {}
    for worker in sorted({worker for worker, _ in aggregate.counted}):
        pairs = (
            (piece, aggregate.counted.get((worker, piece))) for piece in sorted(aggregate.pieces)
        )
        for counted, run in groupby(pairs, key=itemgetter(1)):
            pieces = [piece for piece, _ in run]
            if counted is not None:
                counters |= _named(f"{worker} {pieces[0]} {pieces[-1]}", counted)
    return counters


def _named(run: str, counted: CountedSteps) -> dict[str, int]:
    words = {f"mask {run} {i}": counted.skipped >> 64 * i & _WORD for i in range(_WORDS)}
    newest = {f"step {run}": counted.step, f"version {run}": counted.version}
    return newest | {name: word for name, word in words.items() if word}


def _restored(
    aggregate: Aggregate, counters: Mapping[str, int]
) -> dict[tuple[int, int], CountedSteps]:
    restored: dict[tuple[int, int], CountedSteps] = {}
    numbers, skipped = sorted(aggregate.pieces), _skipped(counters)
    for name, step in counters.items():
        if name.startswith("step "):
            run = name.removeprefix("step ")
            worker, first, *last = map(int, run.split())
            version = counters[f"version {run}"]
            if last:
                words = (counters.get(f"mask {run} {i}", 0) << 64 * i for i in range(_WORDS))
                counted = CountedSteps(step, version, sum(words))
            else:  # of an earlier release, which wrote them piece by piece
                counted = CountedSteps.without(step, version, skipped.get((worker, first), ()))
            begin, end = bisect_left(numbers, first), bisect_right(numbers, (last or [first])[0])
            restored |= {(worker, piece): counted for piece in numbers[begin:end]}
    return restored


def _skipped(counters: Mapping[str, int]) -> dict[tuple[int, int], list[int]]:
    """Skipped steps as earlier releases wrote them: a counter for each."""
    skipped: dict[tuple[int, int], list[int]] = {}
    for name in counters:
        if name.startswith("skipped "):
            worker, piece, step = map(int, name.split()[1:])
            skipped.setdefault((worker, piece), []).append(step)
    return skipped


def _pushes(aggregate: Aggregate, *, run: int, epoch: int) -> Iterator[Frame]:
    """The pushes of versions that are still open."""
    for number, pushes in aggregate.open.items():
        for counted in pushes:
            entry = Entry(number, counted.encoded)
            push = Push(counted.version, counted.learning_rate, (entry,))
            yield encode(push, run=run, epoch=epoch, worker=counted.worker, step=counted.step)
