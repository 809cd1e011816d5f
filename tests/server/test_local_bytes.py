"""What a worker sends and gets in a round does not depend on how many others there are."""

from __future__ import annotations

from functools import partial

import pytest

import thinwire as tw
from tests.server.local_workers import Worker, all_of
from tests.server.servers import RunningServer, network
from thinwire.server.settings import Rules

ROUNDS = 12


def nbytes(worker: Worker) -> dict[str, int]:
    """Frames and all, of ``ROUNDS`` rounds after the first."""
    counted: list[dict[str, int]] = []
    with worker.client as client:
        client.attach(worker.net, worker.optimizer)
        for rounds in (1, ROUNDS):
            worker.train(range(2 * rounds))
            client.state_dict()  # so that nothing is on its way
            stats = client.stats()
            names = ("sent_nbytes", "received_nbytes", "pushed_nbytes", "pulled_nbytes")
            counted.append({name: getattr(stats, name) for name in names})
    first, last = counted
    return {name: last[name] - first[name] for name in last}


def of_each(workers: int) -> list[dict[str, int]]:
    recipe = tw.local_average()
    with RunningServer(recipe, Rules.synchronous(workers)) as server:
        made = [
            Worker([server.address], recipe, rank, workers=workers, every=2)
            for rank in range(workers)
        ]
        return all_of([partial(nbytes, worker) for worker in made])


def test_bytes_of_a_worker_do_not_depend_on_the_number_of_workers() -> None:
    two, four = of_each(2), of_each(4)
    for found in (*two, *four):
        for name, count in found.items():
            assert count == pytest.approx(two[0][name], rel=0.01), name
    # One bit for each weight, and some for vectors and frames: 32 times fewer than in float32.
    dense = 4 * sum(p.numel() for p in network().parameters())
    assert two[0]["sent_nbytes"] < ROUNDS * dense / 24
    assert two[0]["received_nbytes"] < ROUNDS * dense / 24
