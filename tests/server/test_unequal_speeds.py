"""Workers of unequal speed make rounds of unequal length, and wait little for each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

import thinwire as tw
from tests.server.local_workers import Worker, all_of
from tests.server.servers import RunningServer, network, weights
from thinwire.client.client import Client
from thinwire.server.settings import Rules

MOST, SLOWER = 15, 3
STEP_SECONDS = 0.03
"""Far more than what a step computes."""
RECIPE = tw.local_average()
PAIR = Rules.synchronous(2)


@dataclass
class Paced:
    """A worker that sleeps in every step, and the seconds of the steps of each round."""

    worker: Worker
    step_seconds: float
    rounds: list[list[float]] = field(default_factory=list)
    made: int = 0

    def train(self, rounds: int) -> None:
        client, version = self.worker.client, self.worker.client.version
        while version < rounds:
            seconds: list[float] = []
            while client.version == version:
                began = time.monotonic()
                self.step()
                seconds.append(time.monotonic() - began)
            version = client.version
            self.rounds.append(seconds)

    def step(self) -> None:
        time.sleep(self.step_seconds)
        self.worker.train(range(self.made, self.made + 1))
        self.made += 1

    @property
    def steps(self) -> list[int]:
        return [len(seconds) for seconds in self.rounds]

    def usual(self, rounds: slice) -> float:
        """Seconds of a step that does not wait, on this machine as it is now."""
        return median(second for seconds in self.rounds[rounds] for second in seconds)

    def waited(self, rounds: slice) -> float:
        """The fraction of these rounds that their steps with an exchange took longer."""
        longer = sum(max(seconds) - median(seconds) for seconds in self.rounds[rounds])
        return longer / sum(map(sum, self.rounds[rounds]))


def pair(addresses: Sequence[str], rounds: tw.Rounds) -> list[Paced]:
    """A worker, and one that is three times slower."""
    return [
        Paced(Worker(addresses, RECIPE, rank, workers=2, every=rounds), STEP_SECONDS * factor)
        for rank, factor in enumerate((1, SLOWER))
    ]


def attached(work: Callable[[Paced], Any], paced: Paced) -> Any:
    with paced.worker.client as client:
        client.attach(paced.worker.net, paced.worker.optimizer)
        return work(paced)


@pytest.mark.parametrize("delay", [0, 2])
def test_a_worker_that_is_three_times_slower_makes_a_third_of_the_steps(delay: int) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(RunningServer(RECIPE, PAIR)) for _ in range(2)]
        both = pair([s.address for s in servers], tw.Rounds("auto", delay, most=MOST))
        all_of([partial(attached, lambda one: one.train(8), one) for one in both])
    quick, slow = both
    assert quick.steps[0] in (MOST, MOST + delay)
    assert quick.steps[-1] == MOST
    first, last = slice(1), slice(-4, None)
    # A third on an idle machine; on a busy one the sleep is not all that a step takes.
    expected = MOST * quick.usual(last) / slow.usual(last)
    assert sum(slow.steps[last]) / 4 == pytest.approx(expected, abs=2.5)
    assert max(slow.steps[last]) < 0.8 * MOST
    # At first the quick one waits for two thirds of a round.
    assert quick.waited(last) < quick.waited(first) / 2


def test_workers_that_are_equally_fast_make_as_many_steps() -> None:
    with RunningServer(RECIPE, PAIR) as server:
        both = pair([server.address], tw.Rounds("auto", most=8))
        both[1].step_seconds = STEP_SECONDS
        all_of([partial(attached, lambda one: one.train(6), one) for one in both])
    for one in both:
        assert min(one.steps) >= 4
        assert max(one.steps) == 8


def test_asynchronous_workers_make_rounds_of_about_the_same_time() -> None:
    """None of them waits, so it is staleness that falls: one push of each for two versions."""

    def train(paced: Paced) -> list[float]:
        client, ends, pushed = paced.worker.client, list[float](), 0
        while client.version < 16:
            paced.step()
            if client.steps > pushed:
                pushed = client.steps
                ends.append(time.monotonic())
        return ends

    with RunningServer(RECIPE, Rules(2, 1, 1 << 20)) as server:
        both = pair([server.address], tw.Rounds("auto", most=MOST))
        quick, slow = all_of([partial(attached, train, one) for one in both])
    own, other = quick[-1] - quick[-3], slow[-1] - slow[-3]
    assert 0.5 < own / other < 2.0


def test_a_run_goes_on_in_the_middle_of_a_round_as_it_was_chosen(tmp_path: Path) -> None:
    """The length of the round under way, and all speeds, are part of a checkpoint."""
    rounds = tw.Rounds("auto", most=MOST)

    def first(paced: Paced) -> dict[str, Any]:
        paced.train(3)
        for _ in range(2):
            paced.step()
        return paced.worker.save()

    def second(paced: Paced) -> tuple[int, list[int]]:
        paced.made = 2
        paced.train(4)
        chosen = paced.worker.client.stats().round_steps
        assert chosen is not None
        return chosen, paced.steps

    with RunningServer(RECIPE, PAIR, log_dir=tmp_path) as server:
        both = pair([server.address], rounds)
        for one in both:
            one.worker.client.attach(one.worker.net, one.worker.optimizer)
        states = all_of([partial(first, one) for one in both])
        chosen = [one.worker.client.stats().round_steps for one in both]
        for one in both:
            one.worker.client._end(RuntimeError("stopped"))
        again = pair([server.address], rounds)
        for one, state in zip(again, states, strict=True):
            one.worker.load(state)
        found = all_of([partial(attached, second, one) for one in again])
    assert chosen[0] == MOST
    assert [steps[0] + 2 for _, steps in found] == chosen
    assert found[1][0] < MOST


def test_a_log_of_such_rounds_can_be_replayed(tmp_path: Path) -> None:
    """Speeds are in it, and are no part of the network."""

    def train(paced: Paced) -> list[bytes]:
        paced.train(4)
        return paced.worker.shown()

    with RunningServer(RECIPE, PAIR, log_dir=tmp_path) as server:
        both = pair([server.address], tw.Rounds("auto", most=4))
        found = all_of([partial(attached, train, one) for one in both])
    net = network()
    assert tw.replay_log(net, torch.optim.SGD(net.parameters(), lr=1.0), [tmp_path]) == 4
    assert found == [weights(net)] * 2


def test_what_does_not_fit_is_refused_with_what_to_use() -> None:
    with pytest.raises(tw.ConfigError, match=r'most is for every="auto"'):
        tw.Rounds(8, most=9)
    with pytest.raises(tw.ConfigError, match="most must be a whole number"):
        tw.Rounds("auto", most=0)
    with pytest.raises(tw.ConfigError, match="use delay=4 or less"):
        tw.Rounds("auto", delay=5, most=4)
    with pytest.raises(tw.ConfigError, match="every must be a whole number"):
        tw.Rounds("often")  # type: ignore[arg-type]
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(tw.ConfigError, match="exchange after the same number of steps"):
        tw.local_steps(net, optimizer, every="auto")  # type: ignore[arg-type]
    with pytest.raises(tw.ConfigError, match="its workers are equally fast"):
        tw.VirtualCluster(net, optimizer, workers=2, local_steps=tw.Rounds("auto"))
    sparse = replace(tw.local_average(tw.TopK(0.1)), push=tw.TopK(0.1), pull=tw.TopK(0.1))
    client = Client(["tcp://127.0.0.1:1"], sparse, rank=0, workers=2, local_steps="auto")
    with pytest.raises(tw.ConfigError, match="thinwire/speeds"):
        client.attach(net, optimizer)
