"""A snapshot holds all that an aggregate remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

import thinwire as tw
from tests.unit.server.aggregates import KEYS, PIECES, RECIPES, Worker
from thinwire.model import describe
from thinwire.recipe import Recipe
from thinwire.server.aggregate import Aggregate
from thinwire.server.log.snapshot import read_snapshot, write_snapshot
from thinwire.server.settings import Rules
from thinwire.server.snapshot_state import restore, snapshot_of
from thinwire.wire.messages import encode

DESCRIBED = encode(
    describe(KEYS, tw.dense(), server=0, servers=1), run=7, epoch=1, worker=0, step=0
)


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_what_is_restored_goes_on_bit_for_bit(recipe: Recipe, tmp_path: Path) -> None:
    """In the middle of a version, with refused pushes and an absent worker."""
    rules = Rules(4, 3, staleness=2)
    workers = [Worker(recipe, rank, 4) for rank in range(4)]
    first = Aggregate(recipe, PIECES, rules)
    for order in ([0, 1, 2], [0, 1, 3], [0, 2, 1], [0, 1]):
        for rank in order:
            first.count(rank, *workers[rank].push(first.version))
    workers[3].push(0)  # never arrives: a step that is skipped
    first.count(3, *workers[3].push(first.version - 1))
    first.leave(2)
    path = tmp_path / "snapshot"
    write_snapshot(path, snapshot_of(first, [DESCRIBED], run=7, epoch=1), record=5)
    again = Aggregate(recipe, PIECES, rules)
    restore(again, read_snapshot(path, record=5))
    assert again.counted == first.counted
    assert any(mark.skipped for mark in first.counted.values())
    assert (again.open, again.versions, again.absent) == (first.open, first.versions, {2})
    for rank in (0, 1, 3, 0, 1, 3):
        step, push = workers[rank].push(first.version)
        assert first.count(rank, step, push) == again.count(rank, step, push)
