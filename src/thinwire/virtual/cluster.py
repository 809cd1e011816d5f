"""``VirtualCluster``: n workers and a server in one process, one after the other. No threads.

It computes exactly what n machines would, with the same Compressor, codecs, frames and, where
workers run at speeds of their own, the same rules of a server.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.optim.optimizer import Optimizer

from thinwire.choice import choose_recipe
from thinwire.errors import ConfigError
from thinwire.gradient.network import check_gradients, trained_parameters
from thinwire.local.rounds import Rounds, as_rounds
from thinwire.optim.shared_momentum import check_synchronous_if_shared
from thinwire.optim.takeover import use_momentum
from thinwire.recipe import Recipe, local_average
from thinwire.recipe_names import typed_recipe
from thinwire.server.settings import Rules
from thinwire.virtual.exchange import Exchanged, VirtualExchange
from thinwire.virtual.local_workers import LocalWorkers, check_workers
from thinwire.virtual.pace import Lockstep, Pace, Race, Timetable
from thinwire.virtual.replica import LossOf, Replica
from thinwire.virtual.server import VirtualServer
from thinwire.watch.stats_text import byte_text, sent_text, table


class VirtualCluster:
    """Train ``net`` as n workers would, in one process.

    Without a ``recipe`` the one that fits ``optimizer`` is chosen; one that diverges with it is
    refused unless ``force`` is set. A recipe that keeps momentum (``tw.dgc``) takes that of a
    ``torch.optim.SGD`` over. Buffers such
    as batch-norm statistics are those of worker 0, as with DistributedDataParallel.

    Synchronous, unless one of these is given: ``quorum`` is how many gradients make a version
    (None: one of each worker), ``staleness`` how many versions old they may be (None: any number;
    what is older is refused and goes back to its worker's residual), ``speeds`` how many gradients
    each worker makes in a second of simulated time (None: 1). Their times vary by up to the
    fraction ``jitter``, so that the order of arrival is by chance, from ``seed``: the same seed,
    the same bits. ``exchange.state_dict()`` then does not hold gradients that are under way.

    With ``local_steps`` (a number of steps, or ``tw.Rounds``) every worker trains alone, with an
    optimizer state of its own, and they exchange what they have changed in rounds, as with
    ``tw.local_steps``. A step is then one optimizer step of every worker, and between steps ``net``
    has the global weights.

    ``stats()`` has the bytes of a worker so far, each way, and how many times fewer they are than
    in float32; ``print(cluster.stats())`` shows them.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        recipe: Recipe | None = None,
        *,
        workers: int,
        seed: int = 0,
        piece_numel: int | None = None,
        quorum: int | None = None,
        staleness: int | None = None,
        speeds: Sequence[float] | None = None,
        jitter: float = 0.1,
        force: bool = False,
        local_steps: int | Rounds | None = None,
    ) -> None:
        self.steps = 0
        self._pushed_nbytes, self._pulled_nbytes = 0.0, 0.0
        self.last: Exchanged | None = None
        self.finished = [0] * workers
        """How many gradients of each worker have arrived, refused ones included."""
        self.refused = 0
        """How many of them were too old."""
        self.clock = 0.0
        """Simulated seconds until the newest version."""
        self.local: LocalWorkers | None = None
        """The workers, if they make local steps."""
        if local_steps is not None:
            rounds = as_rounds(local_steps)
            check_workers([quorum, staleness, speeds], rounds)
            self.recipe = local_average() if recipe is None else recipe
            self.local = LocalWorkers(
                net,
                optimizer,
                self.recipe,
                rounds,
                workers=workers,
                seed=seed,
                piece_numel=piece_numel,
            )
            return
        recipe = choose_recipe(recipe, optimizer, owner="VirtualCluster", force=force)
        check_gradients(net)
        momentum = use_momentum(recipe, optimizer, trained_parameters(net))
        self._replica = Replica(net, optimizer, momentum)
        self.exchange = VirtualExchange(
            recipe, self._replica.keys, workers=workers, seed=seed, piece_numel=piece_numel
        )
        for role in self.exchange.workers:
            role.momentum = momentum
        self._pace: Pace = Lockstep(self.exchange)
        if (quorum, staleness, speeds) != (None, None, None):
            check_synchronous_if_shared(recipe, synchronous=False)
            rules = _rules(workers, quorum, staleness)
            timetable = Timetable(_speeds(workers, speeds), jitter=jitter, seed=seed)
            server = VirtualServer(self.exchange, recipe, rules, seed=seed)
            self._pace = Race(server, timetable, workers=workers)
        self.recipe = recipe

    @property
    def version(self) -> int:
        """How many updates were applied."""
        return self.steps

    @property
    def evaluations(self) -> int:
        """How many gradients have arrived, of all workers together."""
        return sum(self.finished)

    def step(self, loss_of: LossOf) -> float:
        """Get to the next version: backward passes of ``loss_of(worker)``, one optimizer step.

        ``loss_of`` uses ``net`` with the weights that the worker has just then. A synchronous
        cluster calls it once for each worker; any other, for each that begins a gradient. Returns
        the mean loss of the gradients that arrived. Gradients that parameters had are replaced.
        """
        if self.local is not None:
            return self._step_alone(self.local, loss_of)
        advance = self._pace.advance(self._replica, loss_of, step=self.steps)
        self.last = advance.exchanged
        self._replica.apply(advance.exchanged.mean)
        self.steps += 1
        self._count_nbytes(advance.exchanged)
        for evaluation in advance.arrived:
            self.finished[evaluation.worker] += 1
        self.refused += advance.refused
        self.clock = advance.clock
        return math.fsum(evaluation.loss for evaluation in advance.arrived) / len(advance.arrived)

    def synchronize(self) -> list[Exchanged]:
        """With local steps: exchange all that is left, for the end of training; returns what
        travelled."""
        if self.local is None:
            raise ConfigError("VirtualCluster: only workers with local_steps have anything left")
        travelled = self.local.synchronize()
        for exchanged in travelled:
            self._count_nbytes(exchanged)
        return travelled

    def _count_nbytes(self, exchanged: Exchanged) -> None:
        self._pushed_nbytes += exchanged.pushed_nbytes
        self._pulled_nbytes += exchanged.pulled_nbytes

    def _step_alone(self, local: LocalWorkers, loss_of: LossOf) -> float:
        loss = local.step(loss_of, step=self.steps)
        self.steps += 1
        self.last = local.last
        if self.last is not None:
            self._count_nbytes(self.last)
        self.finished = [count + 1 for count in self.finished]
        self.clock = float(self.steps)
        return loss

    def stats(self) -> VirtualStats:
        """Bytes of one worker, gradients and simulated time so far."""
        workers = len(self.finished)
        dense = 4 * self._trained_numel()
        return VirtualStats(
            recipe=typed_recipe(self.recipe),
            steps=self.steps,
            workers=workers,
            gradients=self.evaluations,
            refused=self.refused,
            clock=self.clock,
            dense_nbytes=dense * self.evaluations / workers,
            dense_pulled_nbytes=dense * self.steps,
            pushed_nbytes=self._pushed_nbytes,
            pulled_nbytes=self._pulled_nbytes,
        )

    def _trained_numel(self) -> int:
        if self.local is not None:
            return self.local.weights.trained_numel
        return sum(key.numel for key in self.exchange.keys)


@dataclass(frozen=True, slots=True)
class VirtualStats:
    """What a virtual cluster did since its beginning. Bytes are those of one worker.

    ``pushed_nbytes`` is what a worker sent, on average, and ``pulled_nbytes`` what it received,
    frames and all. ``dense_nbytes`` are its gradients in float32, also on average, and
    ``dense_pulled_nbytes`` the updates: with a ``quorum`` there may be more of them. Of all
    ``gradients`` that arrived, ``refused`` were too old. ``clock`` is simulated seconds.

    ``print`` shows a short table.
    """

    recipe: str
    steps: int
    workers: int
    gradients: int
    refused: int
    clock: float
    dense_nbytes: float
    dense_pulled_nbytes: int
    pushed_nbytes: float
    pulled_nbytes: float

    @property
    def push_ratio(self) -> float:
        """How many times fewer bytes were pushed. 0 if there were none."""
        return self.dense_nbytes / max(1, self.pushed_nbytes)

    @property
    def pull_ratio(self) -> float:
        """How many times fewer bytes were pulled. 0 if there were none."""
        return self.dense_pulled_nbytes / max(1, self.pulled_nbytes)

    @property
    def ratio(self) -> float:
        """How many times fewer bytes, both ways together. 0 if there were none."""
        dense = self.dense_nbytes + self.dense_pulled_nbytes
        return dense / max(1, self.pushed_nbytes + self.pulled_nbytes)

    def __str__(self) -> str:
        arrived = f"{self.gradients:,} gradients, {self.refused:,} of them refused as too old"
        gradients, updates = map(byte_text, (self.dense_nbytes, self.dense_pulled_nbytes))
        return table(
            [
                ("recipe", self.recipe),
                ("steps", f"{self.steps:,} of {self.workers} workers, {arrived}"),
                ("clock", f"{self.clock:,.1f} simulated seconds"),
                ("dense", f"{gradients} of gradients, {updates} of updates, of one worker"),
                ("pushed", sent_text(self.pushed_nbytes, self.dense_nbytes)),
                ("pulled", sent_text(self.pulled_nbytes, self.dense_pulled_nbytes)),
            ]
        )


def _rules(workers: int, quorum: int | None, staleness: int | None) -> Rules:
    return Rules(
        workers,
        workers if quorum is None else quorum,
        sys.maxsize if staleness is None else staleness,
    )


def _speeds(workers: int, speeds: Sequence[float] | None) -> Sequence[float]:
    if speeds is None:
        return [1.0] * workers
    if len(speeds) != workers:
        raise ConfigError(f"VirtualCluster: {len(speeds)} speeds for {workers} workers")
    return speeds
