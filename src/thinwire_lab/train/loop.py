"""``Loop``: steps, epochs, evaluations and checkpoints of a run, the same for every backend."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from thinwire.errors import NonFiniteError
from thinwire_lab.tasks.base import Score
from thinwire_lab.train.checkpoint import CheckpointStore
from thinwire_lab.train.engines.base import Engine, Tally
from thinwire_lab.train.events import Emit, Evaluation, Outcome
from thinwire_lab.train.plan import Plan, dense_nbytes


class Stop(Protocol):
    """Decides whether a run ends early. All workers stop after the same step."""

    def before(self, step: int) -> None:
        """Called before each step."""

    def after(self, done: int) -> bool:
        """Whether to stop now, after ``done`` steps."""


class Loop:
    """One process's part of a run. The one that ``leads`` evaluates."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        checkpoints: CheckpointStore,
        emit: Emit,
        *,
        leads: bool = True,
    ) -> None:
        self._plan, self._engine, self._checkpoints, self._emit = plan, engine, checkpoints, emit
        self._leads = leads
        self._tally = Tally(dense_nbytes=dense_nbytes(engine.net))

    def load(self, state: dict[str, Any]) -> None:
        """Go on with the counts of a checkpoint."""
        self._tally = Tally.load(state["tally"])

    def run(self, stop: Stop) -> bool:
        """Train to the end; False if it was stopped before. Either way a checkpoint is saved."""
        while self._engine.done < self._plan.steps:
            stop.before(self._engine.done)
            self._step()
            done = self._engine.done
            stopping = stop.after(done) and done < self._plan.steps
            if stopping or self._is_to_be_saved(done):
                self._save(done)
            if stopping:
                return False
        if self._leads:
            score = self._score(self._plan.work.test)
            self._emit(Outcome(self._engine.done, score.loss, score.metric, score.value))
        return True

    def _step(self) -> None:
        number, began = self._engine.done, time.perf_counter()
        step = self._engine.step(self._tally.losses)
        if not math.isfinite(step.loss):
            raise NonFiniteError(
                f"the loss of step {number} is {step.loss}: training diverged, try a lower "
                "--learning-rate"
            )
        self._tally.add(step, time.perf_counter() - began)
        done, rate = self._engine.done, self._plan.rate(number, self._tally.losses)
        self._emit(self._tally.progress(done, step.loss, rate))
        if self._ends_epoch(done):
            self._end_epoch(done, rate)
        elif self._leads and self._is_to_be_evaluated(done):
            self._evaluate(done)

    def _ends_epoch(self, done: int) -> bool:
        return done % self._plan.work.epoch_steps == 0 or done == self._plan.steps

    def _end_epoch(self, done: int, rate: float) -> None:
        self._emit(self._tally.end_epoch(done, self._epoch(done), rate))
        if self._leads or self._plan.task.training.schedule.watches:
            # Evaluations within an epoch do not count: a schedule looks at whole epochs.
            self._tally.losses = (*self._tally.losses, self._evaluate(done))

    def _is_to_be_evaluated(self, done: int) -> bool:
        """Whether this step is the first of another of an epoch's equal parts."""
        parts, steps = self._plan.task.training.evaluations_per_epoch, self._plan.work.epoch_steps
        return done * parts // steps > (done - 1) * parts // steps

    def _evaluate(self, done: int) -> float:
        score = self._score(self._plan.work.validate)
        self._emit(Evaluation(done, self._epoch(done), score.loss, score.metric, score.value))
        return score.loss

    def _score(self, judge: Callable[[nn.Module], Score]) -> Score:
        with self._engine.shown():
            return _score(self._engine.net, judge)

    def _epoch(self, done: int) -> float:
        return done / self._plan.work.epoch_steps

    def _is_to_be_saved(self, done: int) -> bool:
        every = self._plan.settings.save_steps
        return self._ends_epoch(done) or (every is not None and done % every == 0)

    def _save(self, done: int) -> None:
        state = {"engine": self._engine.state_dict(), "tally": self._tally.state_dict()}
        self._checkpoints.save(done, state)


@torch.no_grad()
def _score(net: nn.Module, judge: Callable[[nn.Module], Score]) -> Score:
    net.eval()
    score = judge(net)
    net.train()
    if not math.isfinite(score.loss):
        raise NonFiniteError(f"the held-out loss is {score.loss}: training diverged")
    return score
