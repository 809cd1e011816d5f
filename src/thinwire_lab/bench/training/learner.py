"""``LearnerRole``: a host that trains one way, some steps at a time, and scores held-out text."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from thinwire.errors import ConfigError
from thinwire.hooks.local_exchange import LocalSteps
from thinwire_lab.bench.links.ddp import wrap
from thinwire_lab.bench.links.trainer import measured
from thinwire_lab.bench.server.allreduce import make_groups
from thinwire_lab.bench.training.settings import HOSTS, SEED, WAYS, task_of
from thinwire_lab.bench.workers.messages import Advance, Begin, Join, Reply, Request, Score
from thinwire_lab.seeding import seeded
from thinwire_lab.train.engines.base import set_rate


class Learner:
    """The network of one way on this host. All hosts begin with the same weights."""

    def __init__(self, begin: Begin, rank: int) -> None:
        task = task_of(begin.scale, begin.steps)
        self._training, self._rank, self._steps = task.training, rank, begin.steps
        self._work = task.feed.open(None, workers=HOSTS, seed=SEED)
        with seeded(SEED):
            self.net = task.model.make()
        self._optimizer = task.training.optimizer.make(self.net)
        wrapped = wrap(
            WAYS[begin.way],
            self.net,
            self._optimizer,
            bucket_mb=None,
            servers=(),
            deadline_seconds=begin.deadline_seconds,
        )
        self._model, self._after_step = wrapped.model, wrapped.after_step
        self._local = wrapped.compression if isinstance(wrapped.compression, LocalSteps) else None
        self._done = 0

    def step(self) -> float:
        """The loss of this worker before the step. The last one ends with all that is exchanged."""
        set_rate(self._optimizer, self._training.rate(self._done, self._work.epoch_steps, ()))
        loss = self._work.loss(self._model, step=self._done, worker=self._rank, memory={})
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if self._after_step is not None:
            self._after_step()
        self._optimizer.zero_grad()
        self._done += 1
        if self._local is not None and self._done == self._steps:
            self._local.synchronize()
        return float(loss.detach())

    def score(self) -> float:
        """The loss of held-out text, with the weights that all hosts agree on."""
        with self._global_weights(), torch.no_grad():
            return self._work.test(self.net).loss

    def _global_weights(self) -> AbstractContextManager[None]:
        return nullcontext() if self._local is None else self._local.global_weights()


class LearnerRole:
    """See ``Role``."""

    def __init__(self) -> None:
        self._rank = 0
        self._learner: Learner | None = None

    def do(self, request: Request) -> Reply:
        if isinstance(request, Join):
            return self._join(request)
        if isinstance(request, Begin):
            self._learner = Learner(request, self._rank)
            return Reply()
        if self._learner is not None and isinstance(request, Advance):
            return _advance(self._learner, request.steps)
        if self._learner is not None and isinstance(request, Score):
            return Reply(loss=self._learner.score())
        raise ConfigError(f"{type(request).__name__} is not a request for a learner now")

    def _join(self, request: Join) -> Reply:
        self._rank = request.rank
        make_groups(
            request.rank,
            request.ranks,
            request.store,
            (),
            deadline_seconds=request.deadline_seconds,
        )
        return Reply()


def _advance(learner: Learner, steps: int) -> Reply:
    """The reply has no loss if training has diverged."""
    losses: list[float] = []
    reply = measured(lambda: losses.append(learner.step()), steps)
    return replace(reply, loss=losses[-1] if math.isfinite(losses[-1]) else None)
