"""The loop of a run, the same for every backend: steps, epochs, evaluations, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from thinwire.errors import NonFiniteError
from thinwire.lab.tasks.base import Score
from thinwire.lab.train.checkpoint import Keeper
from thinwire.lab.train.engine import Engine
from thinwire.lab.train.events import Evaluation, Event, Outcome
from thinwire.lab.train.plan import Plan, dense_nbytes
from thinwire.lab.train.tally import Tally

Say = Callable[[Event], None]


class Stop(Protocol):
    """Whether a run is to end early. All its workers end after the same step."""

    def before(self, step: int) -> None:
        """Called before anything of a step is done."""

    def after(self, done: int) -> bool:
        """Whether to stop now, with so many steps done."""


class Loop:
    """One process's part of a run. The one that ``leads`` evaluates and speaks for all."""

    def __init__(
        self, plan: Plan, engine: Engine, keeper: Keeper, say: Say, *, leads: bool = True
    ) -> None:
        self._plan, self._engine, self._keeper, self._say = plan, engine, keeper, say
        self._leads = leads
        self._tally = Tally(dense_nbytes=dense_nbytes(engine.net))

    def load(self, state: dict[str, Any]) -> None:
        """Go on with the counts of a checkpoint."""
        self._tally = Tally.load(state["tally"])

    def run(self, stop: Stop) -> bool:
        """To the end; False if it was stopped before. What is done is saved either way."""
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
            score = _score(self._engine.net, self._plan.work.test)
            self._say(Outcome(self._engine.done, score.loss, score.metric, score.value))
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
        self._say(self._tally.progress(done, step.loss, rate))
        if self._ends_epoch(done):
            self._end_epoch(done, rate)
        elif self._leads and self._is_to_be_evaluated(done):
            self._evaluate(done)

    def _ends_epoch(self, done: int) -> bool:
        return done % self._plan.work.epoch_steps == 0 or done == self._plan.steps

    def _end_epoch(self, done: int, rate: float) -> None:
        self._say(self._tally.end_epoch(done, self._epoch(done), rate))
        if self._leads or self._plan.task.training.schedule.watches:
            # Those in between do not count: a schedule looks at whole epochs.
            self._tally.losses = (*self._tally.losses, self._evaluate(done))

    def _is_to_be_evaluated(self, done: int) -> bool:
        """Whether this step is the first to reach another of an epoch's equal parts."""
        parts, steps = self._plan.task.training.evaluations_per_epoch, self._plan.work.epoch_steps
        return done * parts // steps > (done - 1) * parts // steps

    def _evaluate(self, done: int) -> float:
        score = _score(self._engine.net, self._plan.work.validate)
        self._say(Evaluation(done, self._epoch(done), score.loss, score.metric, score.value))
        return score.loss

    def _epoch(self, done: int) -> float:
        return done / self._plan.work.epoch_steps

    def _is_to_be_saved(self, done: int) -> bool:
        every = self._plan.settings.save_steps
        return self._ends_epoch(done) or (every is not None and done % every == 0)

    def _save(self, done: int) -> None:
        state = {"engine": self._engine.state_dict(), "tally": self._tally.state_dict()}
        self._keeper.save(done, state)


@torch.no_grad()
def _score(net: nn.Module, judge: Callable[[nn.Module], Score]) -> Score:
    net.eval()
    score = judge(net)
    net.train()
    if not math.isfinite(score.loss):
        raise NonFiniteError(f"the held-out loss is {score.loss}: training diverged")
    return score
