"""Workers and servers of local steps are killed, and workers frozen, in any part of a round.

What servers have not counted is made again from a checkpoint, bit for bit. What they have counted
is not pushed twice: then the worker goes on from the global weights, and says what is lost.
"""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

import thinwire as tw
from tests.faults.rounds import (
    ALONE,
    MERGING,
    OVERLAP,
    PUSHING,
    VERSIONS,
    WAITING,
    Ended,
    Fault,
    pushed,
    work,
)
from tests.server.balance import SHAPES, Kept, owed_by, updates_of
from tests.server.local_workers import WORKERS, adamw
from tests.server.processes import PATIENCE_SECONDS, Process, ServerProcess, wait_until
from tests.server.servers import loss_of, network, weights
from thinwire.recipe import Recipe
from thinwire.server.settings import Rules

VICTIM = 1
AT_ONCE, DELAYED = tw.Rounds(4), tw.Rounds(4, delay=2)
ONE_BIT = tw.diloco(lr=0.8, momentum=0.5)

pytestmark = pytest.mark.timeout(180)


class Run:
    """Two servers with logs, and workers."""

    def __init__(
        self, stack: ExitStack, folder: Path, recipe: Recipe, rounds: tw.Rounds, **rules: int
    ) -> None:
        self.folder, self.recipe, self.rounds, self._stack = folder, recipe, rounds, stack
        self.servers = [
            stack.enter_context(
                ServerProcess(folder / str(i), recipe, workers=WORKERS, snapshot_nbytes=1, **rules)
            )
            for i in range(2)
        ]

    def start(self, rank: int, fault: Fault | None = None) -> Process:
        addresses = [server.address for server in self.servers]
        arguments = (addresses, self.recipe, rank, self.rounds, self.folder, fault)
        return self._stack.enter_context(Process(work, *arguments))

    def others(self) -> list[Process]:
        return [self.start(rank) for rank in range(WORKERS) if rank != VICTIM]

    def worker_dies_at(self, moment: str) -> list[Ended]:
        """It is started again from its checkpoint. What all return, the victim's last."""
        others, victim = self.others(), self.start(VICTIM, Fault(moment))
        victim.process.join(PATIENCE_SECONDS)
        assert victim.process.exitcode == -signal.SIGKILL
        again = self.start(VICTIM)
        return [process.result() for process in (*others, again)]

    def server_dies_at(self, moment: str) -> list[Ended]:
        """It is started again, while workers wait for it."""
        server = self.servers[1]
        workers = [*self.others(), self.start(VICTIM, Fault(moment, server.process.pid))]
        server.wait()
        assert server.process.exitcode == -signal.SIGKILL
        server.start()
        return [worker.result() for worker in workers]

    def worker_stops_at(self, moment: str) -> list[Ended]:
        """It goes on when the others have made two rounds or all, without it."""
        victim, others = self.start(VICTIM, Fault(moment, number=signal.SIGSTOP)), self.others()
        wait_until(partial(is_stopped, victim), "the worker stops")
        before = len(pushed(self.folder, 0))
        wait_until(lambda: len(pushed(self.folder, 0)) >= min(VERSIONS, before + 3), "others go on")
        victim.signal(signal.SIGCONT)
        return [process.result() for process in (*others, victim)]

    def kept(self, rules: Rules) -> list[Kept]:
        """What the servers hold in the end."""
        for server in self.servers:
            server.kill()
        return [Kept.by_log(s.folder / "log", self.recipe, rules) for s in self.servers]


def is_stopped(process: Process) -> bool:
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return "State:\tT" in status


@contextmanager
def running(folder: Path, recipe: Recipe, rounds: tw.Rounds, **rules: int) -> Iterator[Run]:
    with ExitStack() as stack:
        yield Run(stack, folder, recipe, rounds, **rules)


def undisturbed(recipe: Recipe, rounds: tw.Rounds) -> list[bytes]:
    net = network()
    cluster = tw.VirtualCluster(net, adamw(net), recipe, workers=WORKERS, local_steps=rounds)
    for step in range(VERSIONS * rounds.longest + rounds.delay):
        cluster.step(partial(loss_of, net, step))
    return weights(net)


@pytest.mark.parametrize(
    ("moment", "rounds"),
    [(ALONE, AT_ONCE), (ALONE, DELAYED), (OVERLAP, DELAYED), (MERGING, DELAYED)],
    ids=repr,
)
def test_a_worker_killed_after_a_checkpoint_of_its_last_push_changes_no_bit(
    moment: str, rounds: tw.Rounds, tmp_path: Path
) -> None:
    with running(tmp_path, ONE_BIT, rounds) as run:
        found = run.worker_dies_at(moment)
    assert [one.weights for one in found] == [undisturbed(ONE_BIT, rounds)] * WORKERS
    assert not any("lost" in text for one in found for text in one.warned)


@pytest.mark.parametrize(
    ("moment", "rounds"),
    [
        (ALONE, AT_ONCE),
        (PUSHING, AT_ONCE),
        (WAITING, AT_ONCE),
        (MERGING, AT_ONCE),
        (PUSHING, DELAYED),
        (OVERLAP, DELAYED),
        (MERGING, DELAYED),
    ],
    ids=repr,
)
def test_a_server_killed_in_any_part_of_a_round_changes_no_bit(
    moment: str, rounds: tw.Rounds, tmp_path: Path
) -> None:
    with running(tmp_path, ONE_BIT, rounds) as run:
        found = run.server_dies_at(moment)
    assert [one.weights for one in found] == [undisturbed(ONE_BIT, rounds)] * WORKERS


@pytest.mark.parametrize(
    ("moment", "rounds"),
    [
        (PUSHING, AT_ONCE),
        (WAITING, AT_ONCE),
        (MERGING, AT_ONCE),
        (PUSHING, DELAYED),
    ],
    ids=repr,
)
def test_a_worker_killed_after_servers_have_counted_its_round_goes_on_with_the_others(
    moment: str, rounds: tw.Rounds, tmp_path: Path
) -> None:
    with running(tmp_path, ONE_BIT, rounds) as run:
        found = run.worker_dies_at(moment)
    assert found[0].weights == found[1].weights == found[2].weights
    of_round = "pushed 3 rounds before it was lost, its checkpoint is of round 2 and step 11"
    assert [text for text in found[-1].warned if of_round in text]


def test_a_worker_that_chooses_its_steps_goes_on_with_the_others_too(tmp_path: Path) -> None:
    with running(tmp_path, ONE_BIT, tw.Rounds("auto", most=4)) as run:
        found = run.worker_dies_at(WAITING)
    assert found[0].weights == found[1].weights == found[2].weights
    assert [text for text in found[-1].warned if "pushed 3 rounds before it was lost" in text]


@pytest.mark.parametrize("who", ["worker", "server"])
@pytest.mark.parametrize("moment", [ALONE, WAITING, MERGING])
def test_I4_with_a_quorum_no_push_is_lost_or_counted_twice(
    moment: str, who: str, tmp_path: Path
) -> None:
    """All that was pushed is in updates, whoever was killed when: nothing is owed in float32."""
    recipe = tw.local_average(tw.Float32())
    with running(tmp_path, recipe, AT_ONCE, quorum=2, staleness=100) as run:
        found = run.worker_dies_at(moment) if who == "worker" else run.server_dies_at(moment)
        kept = run.kept(Rules(WORKERS, 2, 100))
    check_conserved(kept, tmp_path, found)


@pytest.mark.parametrize("staleness", [100, 1])
@pytest.mark.parametrize(
    ("moment", "rounds", "recipe"),
    [
        (ALONE, AT_ONCE, tw.local_average(tw.Float32())),
        (PUSHING, AT_ONCE, tw.local_average()),
        (OVERLAP, DELAYED, tw.local_average()),
        (WAITING, AT_ONCE, ONE_BIT),
    ],
    ids=["alone", "pushing", "overlap", "waiting"],
)
def test_I4_a_worker_that_is_frozen_for_some_rounds_loses_nothing(
    moment: str, rounds: tw.Rounds, recipe: Recipe, staleness: int, tmp_path: Path
) -> None:
    """The others go on; what it pushes afterwards is counted, or refused as too old and owed."""
    with running(tmp_path, recipe, rounds, quorum=2, staleness=staleness) as run:
        found = run.worker_stops_at(moment)
        kept = run.kept(Rules(WORKERS, 2, staleness))
    check_conserved(kept, tmp_path, found)
    assert not any("lost" in text for one in found for text in one.warned)
    if moment == ALONE:
        assert (found[-1].refused_pieces > 0) == (staleness == 1)


def check_conserved(kept: Sequence[Kept], folder: Path, ended: Sequence[Ended]) -> None:
    rounds = [changes for rank in range(WORKERS) for changes in pushed(folder, rank)]
    for name, shape in SHAPES.items():
        given = sum(changes[name].double().view(shape) / WORKERS for changes in rounds)
        owed = sum(one.owed[name].double().view(shape) / WORKERS for one in ended)
        total = updates_of(kept, name) + owed_by(kept, name) + owed
        torch.testing.assert_close(total, given, rtol=1e-5, atol=1e-5)
