"""A cluster in one process: n workers and the server side, one after the other. No threads.

Exactly what n machines would compute, with the same Compressor, codecs, frames and, where workers
run at speeds of their own, the same rules of a server.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from torch import nn
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.recipe import Recipe, check_recipe
from thinwire.server.rules import Rules
from thinwire.worker.momentum import take_over_momentum
from thinwire.worker.virtual_clock import Timetable
from thinwire.worker.virtual_exchange import Exchanged, VirtualExchange
from thinwire.worker.virtual_pace import Lockstep, Pace
from thinwire.worker.virtual_race import Race
from thinwire.worker.virtual_replica import LossOf, Replica
from thinwire.worker.virtual_server import VirtualServer

__all__ = ["VirtualCluster", "VirtualExchange"]


class VirtualCluster:
    """Train ``net`` as n workers would, in one process.

    A recipe that keeps momentum (``tw.dgc``) takes that of a ``torch.optim.SGD`` over. Buffers such
    as batch-norm statistics are those of worker 0, as with DistributedDataParallel.

    Synchronous, unless one of these is given: ``quorum`` is how many gradients make a version
    (None: one of each worker), ``staleness`` how many versions old they may be (None: any number;
    what is older is refused and goes back to its worker's residual), ``speeds`` how many gradients
    each worker makes in a second of simulated time (None: 1). Their times vary by up to the
    fraction ``jitter``, so that the order of arrival is by chance, from ``seed``: the same seed,
    the same bits. ``exchange.state_dict()`` then does not hold gradients that are under way.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        recipe: Recipe,
        *,
        workers: int,
        seed: int = 0,
        piece_numel: int | None = None,
        quorum: int | None = None,
        staleness: int | None = None,
        speeds: Sequence[float] | None = None,
        jitter: float = 0.1,
    ) -> None:
        check_recipe(recipe, owner="VirtualCluster")
        take_over_momentum(recipe, optimizer)
        self._replica = Replica(net, optimizer)
        self.exchange = VirtualExchange(
            recipe, self._replica.keys, workers=workers, seed=seed, piece_numel=piece_numel
        )
        self._pace: Pace = Lockstep(self.exchange)
        if (quorum, staleness, speeds) != (None, None, None):
            rules = _rules(workers, quorum, staleness)
            timetable = Timetable(_speeds(workers, speeds), jitter=jitter, seed=seed)
            server = VirtualServer(self.exchange, recipe, rules, seed=seed)
            self._pace = Race(server, timetable, workers=workers)
        self.steps = 0
        self.last: Exchanged | None = None
        self.finished = [0] * workers
        """How many gradients of each worker have arrived, refused ones included."""
        self.refused = 0
        """How many of them were too old."""
        self.clock = 0.0
        """Simulated seconds until the newest version."""

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
        advance = self._pace.advance(self._replica, loss_of, step=self.steps)
        self.last = advance.exchanged
        self._replica.apply(advance.exchanged.mean)
        self.steps += 1
        for one in advance.arrived:
            self.finished[one.worker] += 1
        self.refused += advance.refused
        self.clock = advance.clock
        return math.fsum(one.loss for one in advance.arrived) / len(advance.arrived)


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
