"""All that an aggregate remembers, as a snapshot, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thinwire.errors import LogError
from thinwire.server.aggregate import Aggregate, Contribution, Mark
from thinwire.server.snapshot import Snapshot
from thinwire.wire.body import Entry
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Describe, Join, Push, decode, encode


def snapshot_of(aggregate: Aggregate, said: Sequence[Frame], *, run: int, epoch: int) -> Snapshot:
    """``said`` is what the first worker did: Describe, and Join if it has checksums.

    The log may have lost them.
    """
    return Snapshot(
        run,
        epoch,
        buffers=aggregate.compressor.state_dict(),
        versions={str(number): version for number, version in aggregate.versions.items()},
        counters={**_marks(aggregate), **{f"absent {worker}": 1 for worker in aggregate.absent}},
        pending=(*said, *_pushes(aggregate, run=run, epoch=epoch)),
    )


def restore(aggregate: Aggregate, snapshot: Snapshot) -> None:
    """Make an aggregate of the same model and rules what it was."""
    aggregate.compressor.load_state_dict(snapshot.buffers)
    aggregate.versions.update({int(n): version for n, version in snapshot.versions.items()})
    skipped = _skipped(snapshot)
    for name, number in snapshot.counters.items():
        kind, *numbers = name.split()
        if kind == "absent":
            aggregate.absent.add(int(numbers[0]))
        elif kind == "step":
            worker, piece = map(int, numbers)
            version = snapshot.counters[f"version {worker} {piece}"]
            aggregate.marks[worker, piece] = Mark(number, version, skipped.get((worker, piece), ()))
    for frame in snapshot.pending:
        message = decode(frame)
        if isinstance(message, Describe | Join):
            continue  # not the aggregate's
        if not isinstance(message, Push):
            raise LogError(f"snapshot: a {type(message).__name__} among the pushes")
        for entry in message.entries:
            pushes = aggregate.open[entry.piece]
            pushes.append(Contribution.of(frame.worker, frame.step, message, entry))


def _marks(aggregate: Aggregate) -> dict[str, int]:
    found = {}
    for (worker, piece), mark in aggregate.marks.items():
        found[f"step {worker} {piece}"] = mark.step
        found[f"version {worker} {piece}"] = mark.version
        found |= {f"skipped {worker} {piece} {step}": 1 for step in mark.skipped}
    return found


def _skipped(snapshot: Snapshot) -> dict[tuple[int, int], tuple[int, ...]]:
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for name in snapshot.counters:
        if name.startswith("skipped "):
            worker, piece, step = map(int, name.split()[1:])
            found[worker, piece] = (*found.get((worker, piece), ()), step)
    return found


def _pushes(aggregate: Aggregate, *, run: int, epoch: int) -> Iterator[Frame]:
    """Those of versions that are still open."""
    for number, pushes in aggregate.open.items():
        for one in pushes:
            encoded = one.encoded
            entry = Entry(number, encoded.wire_id, encoded.numel, memoryview(encoded.payload))
            push = Push(one.version, one.learning_rate, (entry,))
            yield encode(push, run=run, epoch=epoch, worker=one.worker, step=one.step)
