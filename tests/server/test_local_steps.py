"""Local steps through servers: workers that train alone, and exchange rounds."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from tests.server.balance import SHAPES, Kept, owed_by, owed_by_clients, updates_of
from tests.server.local_workers import RECIPES, WORKERS, Worker, adamw, all_of
from tests.server.processes import Process, ServerProcess, wait_until
from tests.server.servers import RunningServer, loss_of, network, weights
from thinwire.client.client import Client
from thinwire.local.global_weights import Changes
from thinwire.recipe import Recipe
from thinwire.server.settings import Rules


def virtual(recipe: Recipe, steps: int, rounds: tw.Rounds) -> list[bytes]:
    net = network()
    cluster = tw.VirtualCluster(net, adamw(net), recipe, workers=WORKERS, local_steps=rounds)
    for step in range(steps):
        cluster.step(partial(loss_of, net, step))
    return weights(net)


@pytest.mark.parametrize("name", [name for name in RECIPES if "delayed" not in name])
@pytest.mark.parametrize("rounds", [tw.Rounds(4), tw.Rounds(4, delay=2)], ids=repr)
def test_S1_workers_are_what_the_virtual_cluster_computes(name: str, rounds: tw.Rounds) -> None:
    recipe, rules = RECIPES[name], Rules.synchronous(WORKERS)
    with RunningServer(recipe, rules) as first, RunningServer(recipe, rules) as second:
        addresses = [first.address, second.address]
        workers = [Worker(addresses, recipe, rank, every=rounds) for rank in range(WORKERS)]
        found = all_of([partial(trained, worker, 18) for worker in workers])
    assert found == [virtual(recipe, 18, rounds)] * WORKERS


def trained(worker: Worker, steps: int) -> list[bytes]:
    with worker.client as client:
        client.attach(worker.net, worker.optimizer)
        worker.train(range(steps))
        return worker.shown()


@pytest.mark.parametrize("rounds", [tw.Rounds(4), tw.Rounds(4, delay=3)], ids=repr)
def test_all_have_the_same_weights_after_the_last_exchange(rounds: tw.Rounds) -> None:
    def work(worker: Worker) -> tuple[list[bytes], list[bytes]]:
        with worker.client as client:
            client.attach(worker.net, worker.optimizer)
            worker.train(range(10))
            client.synchronize()
            return weights(worker.net), worker.shown()

    with RunningServer(RECIPES["1 bit"], Rules.synchronous(WORKERS)) as server:
        workers = [
            Worker([server.address], RECIPES["1 bit"], r, every=rounds) for r in range(WORKERS)
        ]
        found = all_of([partial(work, worker) for worker in workers])
    for own, shared in found:
        assert own == shared == found[0][0]


@pytest.mark.parametrize("name", ["1 bit", "1 bit, diloco", "top-k, delayed"])
@pytest.mark.parametrize("rounds", [tw.Rounds(4), tw.Rounds(4, delay=2)], ids=repr)
@pytest.mark.parametrize("at", [3, 4, 5, 6, 8])
def test_a_run_resumes_bit_for_bit_in_any_part_of_a_round(
    name: str, rounds: tw.Rounds, at: int, tmp_path: Path
) -> None:
    """All workers and the server stop after step ``at``, and go on from what they kept."""
    recipe = RECIPES[name]
    states: list[dict[str, Any]] = [{} for _ in range(WORKERS)]

    def first(worker: Worker) -> None:
        worker.client.attach(worker.net, worker.optimizer)
        worker.train(range(at))
        states[worker.rank] = worker.save()
        worker.client._end(RuntimeError("stopped"))

    def second(worker: Worker) -> list[bytes]:
        worker.load(states[worker.rank])
        with worker.client as client:
            client.attach(worker.net, worker.optimizer)
            worker.train(range(at, 15))
            return weights(worker.net)

    def whole(worker: Worker) -> list[bytes]:
        with worker.client as client:
            client.attach(worker.net, worker.optimizer)
            worker.train(range(15))
            return weights(worker.net)

    def run(server: RunningServer, work: Callable[[Worker], Any]) -> list[Any]:
        workers = [Worker([server.address], recipe, r, every=rounds) for r in range(WORKERS)]
        return all_of([partial(work, worker) for worker in workers])

    rules = Rules.synchronous(WORKERS)
    with RunningServer(recipe, rules) as server:
        expected = run(server, whole)
    with RunningServer(recipe, rules, log_dir=tmp_path) as server:
        run(server, first)
        server.stop()
        server.start()
        assert run(server, second) == expected


class Watched:
    """A worker that notes all that it ever pushed, by parameter."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.changed = {name: torch.zeros(shape.numel()).double() for name, shape in SHAPES.items()}

    def train(self, versions: int) -> None:
        client, steps = self.worker.client, 0
        client.attach(self.worker.net, self.worker.optimizer)
        weights_ = client._alone().weights
        take = weights_.changes

        def watched(names: Iterable[str], *, goes_on: bool) -> Changes:
            changes = take(names, goes_on=goes_on)
            for name in self.changed:
                self.changed[name] += changes.flat[name]
            return changes

        weights_.changes = watched  # type: ignore[method-assign]
        while client.version < versions:
            self.worker.train(range(steps, steps + 1))
            steps += 1


@pytest.mark.parametrize(("quorum", "staleness"), [(1, 100), (2, 100), (1, 0), (3, 0)])
@pytest.mark.parametrize(
    "rounds", [tw.Rounds(3), tw.Rounds(3, delay=1), tw.Rounds("auto", most=3)], ids=repr
)
@pytest.mark.parametrize("codec", [None, tw.TopK(0.05)], ids=repr)
def test_I4_nothing_that_was_changed_is_lost(
    codec: tw.TopK | None, rounds: tw.Rounds, quorum: int, staleness: int
) -> None:
    """Asynchronous servers, too: it is in an update, or owed by a worker or a server."""
    recipe, rules = tw.local_average(codec), Rules(WORKERS, quorum, staleness)
    with RunningServer(recipe, rules) as server:
        workers = [
            Watched(Worker([server.address], recipe, rank, every=rounds)) for rank in range(WORKERS)
        ]
        all_of([partial(worker.train, 12) for worker in workers])
        clients = [worker.worker.client for worker in workers]
        for client in clients:
            client.close()
            client._joined().pushing.take_back_refused()
        assert server.error is None
    kept = [Kept.by_service(server.service)]
    for name, shape in SHAPES.items():
        total = updates_of(kept, name) + owed_by(kept, name) + owed_by_clients(clients, name)
        given = torch.stack([worker.changed[name] for worker in workers]).mean(0)
        torch.testing.assert_close(total, given.reshape(shape), rtol=1e-5, atol=1e-6)


RULES = Rules(2, 1, 1 << 20)
"""Every push makes a version, so that one worker of two gets on while the other is away."""


def test_a_worker_that_missed_rounds_keeps_what_it_has_changed_since() -> None:
    recipe = RECIPES["float32"]
    with RunningServer(recipe, RULES) as server:
        away, other = (Worker([server.address], recipe, rank, workers=2) for rank in range(2))
        with other.client as client:
            away.client.attach(away.net, away.optimizer)
            client.attach(other.net, other.optimizer)
            away.train(range(6))
            state = away.save()
            away.client._end(RuntimeError("stopped"))
            other.train(range(12))
            back = Worker([server.address], recipe, 0, workers=2)
            back.load(state)
            with back.client:
                own, before = flat_of(back.net), flat_of(away.net)
                with away.client.global_weights():
                    old = flat_of(away.net)
                back.client.attach(back.net, back.optimizer)
                with back.client.global_weights():
                    new = flat_of(back.net)
                assert back.client.version == 4
                assert torch.equal(own, before)
                assert not torch.equal(new, old)
                torch.testing.assert_close(flat_of(back.net), own + new - old)


def test_a_worker_whose_checkpoint_is_of_an_earlier_round_takes_the_global_weights(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recipe = RECIPES["1 bit"]
    with RunningServer(recipe, RULES) as server:
        lost = Worker([server.address], recipe, 0, workers=2)
        lost.client.attach(lost.net, lost.optimizer)
        lost.train(range(6))
        state = lost.save()
        lost.train(range(6, 14))
        lost.client._end(RuntimeError("killed"))
        back = Worker([server.address], recipe, 0, workers=2)
        back.load(state)
        with back.client as client:
            client.attach(back.net, back.optimizer)
            assert "pushed 3 rounds before it was lost, its checkpoint is of round 1" in caplog.text
            assert client.version == 3
            assert weights(back.net) == back.shown()
            back.train(range(14, 18))
            assert client.version == 4


def flat_of(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def run_alone(addresses: Sequence[str], recipe: Recipe, rank: int, steps: int) -> list[bytes]:
    """A worker in a process of its own."""
    worker = Worker(addresses, recipe, rank, every=tw.Rounds(4, delay=1))
    with worker.client as client:
        client.attach(worker.net, worker.optimizer)
        for step in range(steps):
            worker.train(range(step, step + 1))
            time.sleep(0.005)
        return worker.shown()


@pytest.mark.timeout(240)
def test_a_server_killed_at_random_moments_changes_no_bit(tmp_path: Path) -> None:
    recipe, steps, kills = RECIPES["1 bit, diloco"], 600, 12
    chance = random.Random(7)  # noqa: S311 - not for secrets
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                ServerProcess(tmp_path / str(i), recipe, workers=WORKERS, snapshot_nbytes=1)
            )
            for i in range(2)
        ]
        addresses = [server.address for server in servers]
        workers = [
            stack.enter_context(Process(run_alone, addresses, recipe, rank, steps))
            for rank in range(WORKERS)
        ]
        for _ in range(kills):
            victim = chance.choice(servers)
            before = log_nbytes(victim)
            wait_until(partial(has_grown, victim, before), "the server accepts a push")
            time.sleep(chance.uniform(0.0, 0.1))
            assert victim.process.is_alive(), "training ended before all kills"
            victim.kill()
            victim.start()
        found = [worker.result() for worker in workers]
    assert found == [virtual(recipe, steps, tw.Rounds(4, delay=1))] * WORKERS


def log_nbytes(server: ServerProcess) -> int:
    files = (server.folder / "log").glob("**/*")
    return sum(file.stat().st_size for file in files if file.exists())


def has_grown(server: ServerProcess, before: int) -> bool:
    return log_nbytes(server) != before


def test_a_script_with_client_step_needs_one_argument_more() -> None:
    """``client.step()`` is a step of the optimizer and of the scheduler."""
    recipe = RECIPES["float32"]
    with RunningServer(recipe, Rules.synchronous(1)) as server:
        worker = Worker([server.address], None, 0, workers=1)
        worker.client = Client([server.address], recipe, rank=0, workers=1, local_steps=4)
        scheduler = torch.optim.lr_scheduler.StepLR(worker.optimizer, 2, gamma=0.5)
        with worker.client as client:
            client.attach(worker.net, worker.optimizer, scheduler=scheduler)
            for step in range(8):
                worker.optimizer.zero_grad()
                loss_of(worker.net, step, 0).backward()  # type: ignore[no-untyped-call]
                client.step()
            stats = client.stats()
    assert scheduler.get_last_lr() == [3e-3 / 16]
    assert (stats.steps, stats.rounds, stats.version) == (8, 2, 2)
    assert stats.ratio == pytest.approx(4.0, rel=0.02)
    assert "8, 2 exchanges, at version 2" in str(stats)


def test_what_does_not_fit_is_refused_with_what_to_use() -> None:
    with pytest.raises(tw.ConfigError, match="use fragments=1"):
        Client(["tcp://127.0.0.1:1"], rank=0, workers=1, local_steps=tw.Rounds(8, fragments=2))
    with pytest.raises(tw.ConfigError, match="leave early_forward out"):
        Client(["tcp://127.0.0.1:1"], rank=0, workers=1, local_steps=8, early_forward=True)
    adam = Worker(["tcp://127.0.0.1:1"], tw.adam(), 0, workers=1)
    with pytest.raises(tw.ConfigError, match=r"use tw.local_average\(\) or tw.diloco\(\)"):
        adam.client.attach(adam.net, adam.optimizer)
    with pytest.raises(tw.ConfigError, match="give local_steps="):
        Client(["tcp://127.0.0.1:1"], rank=0, workers=1).synchronize()
    with RunningServer(tw.local_average(), Rules.synchronous(1)) as server:
        worker = Worker([server.address], None, 0, workers=1)
        with worker.client as client:
            client.attach(worker.net, worker.optimizer)
            with client.global_weights(), pytest.raises(tw.ConfigError, match="only lent"):
                worker.train(range(1))


def test_a_server_of_rounds_refuses_a_worker_that_sends_gradients() -> None:
    """Also where nothing is compressed: the mean of gradients and of changes is neither."""
    with RunningServer(tw.local_average(tw.Float32()), Rules.synchronous(1)) as server:
        net = network()
        client = Client([server.address], tw.dense(), rank=0, workers=1)
        with pytest.raises(tw.Refused, match="recipe"):
            client.attach(net, adamw(net))
    for recipe in (tw.local_average(), tw.local_average(tw.Float32()), tw.sparseloco()):
        client = Client(["tcp://127.0.0.1:1"], recipe, rank=0, workers=1)
        with pytest.raises(tw.ConfigError, match="this recipe is for local steps"):
            client.attach(net, adamw(net))
    worker = Worker(["tcp://127.0.0.1:1"], tw.dense(), 0, workers=1)
    with pytest.raises(tw.ConfigError, match="this recipe is for gradients"):
        worker.client.attach(worker.net, worker.optimizer)


def test_a_worker_that_diverged_stops_and_pushes_nothing() -> None:
    with RunningServer(tw.local_average(), Rules.synchronous(1)) as server:
        worker = Worker([server.address], None, 0, workers=1)
        with worker.client as client:
            client.attach(worker.net, worker.optimizer)
            with torch.no_grad():
                next(iter(worker.net.parameters()))[0, 0] = torch.nan
            with pytest.raises(tw.NonFiniteError, match=r"step 4: 0\.weight is not finite"):
                worker.train(range(4))
            assert client.steps == 0
