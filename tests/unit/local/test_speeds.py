"""local/speeds.py: who is how fast, as each worker knows it, and what follows for its rounds."""

from __future__ import annotations

import pytest
import torch

from thinwire.local.speeds import Speeds, Stopwatch


class Table:
    """The tensor of speeds as servers have it, in float32."""

    def __init__(self, workers: int) -> None:
        self.known = torch.zeros(workers)
        self.workers = [Speeds(rank, workers) for rank in range(workers)]

    def tell(self, rank: int, speed: float | None) -> torch.Tensor:
        """What this worker pushes."""
        self.workers[rank].tell(self.known, speed)
        return self.known - self.workers[rank].sent

    def apply(self, *changes: torch.Tensor) -> None:
        for change in changes:
            self.known -= change / len(self.workers)

    def steps(self, rank: int, *, most: int = 30, least: int = 1) -> int:
        return self.workers[rank].steps(self.known, most=most, least=least)


def test_in_a_synchronous_round_all_learn_the_speeds_of_all() -> None:
    table = Table(3)
    assert [table.steps(rank) for rank in range(3)] == [30, 30, 30]
    table.apply(*[table.tell(rank, speed) for rank, speed in enumerate((10.0, 40.0, 1.0))])
    assert table.known.tolist() == pytest.approx([10.0, 40.0, 1.0])
    assert [table.steps(rank) for rank in range(3)] == [7, 30, 1]
    assert table.steps(2, least=4) == 4


def test_speeds_are_averaged_with_those_before() -> None:
    table = Table(2)
    table.apply(table.tell(0, 10.0), table.tell(1, 10.0))
    table.apply(table.tell(0, 20.0), table.tell(1, None))
    assert table.known.tolist() == pytest.approx([15.0, 10.0])
    assert table.steps(1) == 20


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_still_on_its_way_or_lost_is_right_in_the_end(lost: bool) -> None:
    """Asynchronous servers answer before they have counted a push: it is not told twice."""
    table, highest = Table(2), 0.0
    under_way = table.tell(0, 8.0)
    for _ in range(20):
        pushed = table.tell(0, 8.0)
        if not lost:
            table.apply(under_way)
        lost, under_way = False, pushed
        highest = max(highest, float(table.known[0]))
    assert table.known.tolist() == pytest.approx([8.0, 0.0], rel=0.01)
    assert highest < 11.0


def test_a_worker_that_is_away_is_forgotten_and_found_again() -> None:
    table = Table(2)
    table.apply(table.tell(0, 10.0), table.tell(1, 30.0))
    found = []
    for step in range(6):
        found.append(table.steps(0))
        table.apply(table.tell(0, 10.0 + step / 1e6))
    assert found == [10, 10, 10, 10, 30, 30]
    table.apply(table.tell(1, 31.0))
    assert table.steps(0) < 30


def test_a_worker_that_comes_back_with_less_than_it_told_sets_it_right() -> None:
    table = Table(2)
    table.apply(table.tell(0, 10.0))
    again = Table(2)
    again.known = table.known
    again.workers[0].forget_told(table.known)
    again.apply(again.tell(0, 4.0))
    assert again.known.tolist() == pytest.approx([4.0, 0.0])


def test_its_state_is_all_that_it_knows() -> None:
    table = Table(2)
    for step in range(3):
        table.apply(table.tell(0, 10.0 + step), table.tell(1, 30.0))
        table.steps(0)
    again = Speeds(0, 2)
    again.load_state_dict(table.workers[0].state_dict())
    for _ in range(4):
        assert again.steps(table.known, most=30, least=1) == table.steps(0)
    again.tell(table.known, 5.0)
    table.workers[0].tell(table.known, 5.0)
    assert torch.equal(again.sent, table.workers[0].sent)


def test_a_stopwatch_counts_what_is_trained_and_not_what_is_waited() -> None:
    watch = Stopwatch()
    watch.count()  # the first step of a process
    watch.run(10.0)
    watch.run(11.0)
    watch.count()
    watch.count()
    watch.stop(14.0)
    watch.stop(99.0)
    watch.run(100.0)
    watch.count()
    assert watch.take(102.0) == 3 / 6.0
    assert watch.take(104.0) is None
    watch.count()
    assert watch.take(105.0) == 1.0
