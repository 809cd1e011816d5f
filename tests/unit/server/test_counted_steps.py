"""Which steps were counted is known exactly, in few bytes, in memory and in snapshots."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import thinwire as tw
from tests.cases import laws
from thinwire.gradient.pieces import cut
from thinwire.server.aggregate import Aggregate
from thinwire.server.counted_steps import MOST_SKIPPED
from thinwire.server.log.snapshot import Snapshot, read_snapshot, write_snapshot
from thinwire.server.settings import Rules
from thinwire.server.snapshot_state import restore, snapshot_of
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.messages import Push

HIGH = 10**6
ALONE = Rules(1, 1, staleness=10**9)


def aggregate_of(pieces: int, rules: Rules = ALONE) -> Aggregate:
    keys = [tw.Key(f"t{number}", (1,)) for number in range(pieces)]
    return Aggregate(tw.dense(), dict(enumerate(cut(keys, most_numel=128))), rules)


def push(version: int, pieces: int = 1) -> Push:
    payload = memoryview(bytes(4))
    return Push(
        version, 0.1, tuple(Entry(number, EncodedBytes(1, 1, payload)) for number in range(pieces))
    )


def pushed_at(step: int, pieces: int) -> Aggregate:
    """A first push of each of two workers; the version stays open, with both."""
    aggregate = aggregate_of(pieces, Rules(3, 3, 0))
    for worker in range(2):
        aggregate.count(worker, step, push(0, pieces))
    return aggregate


def allocated_by(step: int, pieces: int) -> int:
    gc.collect()  # empties the free lists of tuples, which tracemalloc does not see
    tracemalloc.start()
    aggregate = pushed_at(step, pieces)
    nbytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(aggregate.counted) == 2 * pieces
    return nbytes


def test_a_first_push_at_a_high_step_takes_no_more_memory_than_one_at_step_0() -> None:
    pieces = 2000
    allocated_by(0, pieces)  # what is allocated only once is not meant
    more = allocated_by(HIGH, pieces) - allocated_by(0, pieces)
    assert more / (2 * pieces) < 8


def test_a_snapshot_after_a_high_step_is_hardly_larger(tmp_path: Path) -> None:
    pieces, nbytes = 500, []
    for step in (0, HIGH):
        snapshot = snapshot_of(pushed_at(step, pieces), [], run=7, epoch=1)
        nbytes.append(write_snapshot(tmp_path / f"{step}", snapshot, record=5))
    assert nbytes[1] - nbytes[0] < 500


@pytest.mark.parametrize("stride", [2, 3, 100])
def test_steps_that_are_left_out_again_and_again_are_bounded(stride: int, tmp_path: Path) -> None:
    aggregate = aggregate_of(1)
    for version in range(300):
        aggregate.count(0, stride * version, push(version))
    mark = aggregate.counted[0, 0]
    assert sum(map(sys.getsizeof, (mark, mark.step, mark.version, mark.skipped))) < 256
    snapshot = snapshot_of(aggregate, [], run=7, epoch=1)
    assert write_snapshot(tmp_path / "snapshot", snapshot, record=5) < 400


def test_a_snapshot_of_earlier_versions_is_understood() -> None:
    """They had a counter for each step that was left out."""
    counted = aggregate_of(2)
    for version, step in enumerate([0, 3, 4, 9]):
        counted.count(0, step, push(version))
    counters = {f"skipped 0 0 {step}": 1 for step in (1, 2, 5, 6, 7, 8)}
    counters |= {"step 0 0": 9, "version 0 0": 3, "absent 0": 1}
    restored = aggregate_of(2)
    restore(restored, Snapshot(7, 1, versions={"0": 4, "1": 4}, counters=counters))
    assert restored.counted == {(0, 0): counted.counted[0, 0]}
    for step in range(12):
        assert restored.judge(0, step, push(4)) == counted.judge(0, step, push(4))


class Steps:
    """The same rules for one piece, with a set of all steps that were counted."""

    def __init__(self) -> None:
        self.counted: set[int] = set()
        self.newest = self.version = -1

    def judge(self, step: int, version: int) -> str:
        if step in self.counted or step < self.newest - MOST_SKIPPED:
            return "repeated"
        return "accepted" if version > self.version else "stale"

    def count(self, step: int, version: int) -> None:
        self.counted.add(step)
        self.newest, self.version = max(self.newest, step), version


near = st.integers(0, 2 * MOST_SKIPPED)


@laws
@given(pushes=st.lists(st.tuples(near | st.integers(0, 9), st.integers(0, 1)), max_size=40))
def test_a_step_is_counted_once_and_one_that_was_not_may_come_again(
    pushes: list[tuple[int, int]],
) -> None:
    """Also by a server that was started again from a snapshot before each push."""
    expected, aggregate = Steps(), aggregate_of(1)
    for step, behind in pushes:
        version = max(0, aggregate.version - behind)
        verdict = aggregate.judge(0, step, push(version))
        outcome = expected.judge(step, version)
        assert getattr(verdict, outcome) == (0,)
        aggregate.count(0, step, push(version))
        if outcome == "accepted":
            expected.count(step, version)
        again = aggregate_of(1)
        restore(again, snapshot_of(aggregate, [], run=7, epoch=1))
        assert again.counted == aggregate.counted
        aggregate = again


def test_a_snapshot_file_gives_back_the_marks_of_all_pieces(tmp_path: Path) -> None:
    aggregate = aggregate_of(4)
    for version, step in enumerate([HIGH, HIGH + 2, HIGH + 200]):
        aggregate.count(0, step, push(version, 4 - version))
    write_snapshot(tmp_path / "one", snapshot_of(aggregate, [], run=7, epoch=1), record=5)
    again = aggregate_of(4)
    restore(again, read_snapshot(tmp_path / "one", record=5))
    assert again.counted == aggregate.counted
    assert len({mark.skipped for mark in again.counted.values()}) == 3
