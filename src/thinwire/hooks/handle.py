"""``Compression``: the handle of a model whose gradients are compressed in every backward."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.choice import check_pair
from thinwire.exchange.base import StepExchange
from thinwire.exchange.optimizer_steps import OptimizerSteps
from thinwire.exchange.pipeline import Runner
from thinwire.gradient.steps import StepInfo
from thinwire.hooks.gradient_watch import GradientWatch
from thinwire.hooks.rank_handle import RankHandle
from thinwire.hooks.rendezvous import Membership
from thinwire.optim.shared_momentum import MomentumSource
from thinwire.recipe import Recipe


class Compression(RankHandle):
    """What ``compress_ddp`` and ``compress_module`` return: state for checkpoints, statistics, and
    a way to stop."""

    def __init__(
        self,
        membership: Membership,
        runner: Runner,
        *,
        parameters: Iterable[int],
        recipe: Recipe,
        optimizer: Optimizer | None,
        force: bool,
        deadline_seconds: float,
    ) -> None:
        """``parameters`` are the ids of those of the network. Use ``compress_ddp`` or
        ``compress_module`` instead."""
        super().__init__(membership, runner, recipe=recipe, deadline_seconds=deadline_seconds)
        self._optimizer = optimizer
        # An optimizer that was given is checked already; any other, when it first steps.
        check = None if optimizer is not None else partial(check_pair, recipe, force=force)
        self._optimizer_steps = OptimizerSteps(parameters, check)
        self._momentum: MomentumSource | None = None
        self._gradient_watch: GradientWatch | None = None

    def watch_gradients(self, parameters: Mapping[str, Tensor]) -> None:
        """Warn if the script clips what comes back. Before ``carry``, which changes gradients."""
        if self._optimizer is not None:
            self._gradient_watch = GradientWatch(self.recipe, self._optimizer, parameters)

    def carry(self, momentum: MomentumSource | None) -> None:
        """Send this momentum with gradients, for recipes that share the optimizer's."""
        self._momentum = momentum
        if self._exchange.worker is not None:
            self._exchange.worker.momentum = momentum

    def close(self) -> None:
        for watching in (self._momentum, self._gradient_watch):
            if watching is not None:
                watching.detach()
        super().close()

    def _look_at_gradients(self) -> None:
        """Once all gradients are those of all ranks, where the script sees them."""
        if self._gradient_watch is not None:
            self._gradient_watch.look(self._current.info.step)

    @abstractmethod
    def _end_of_backward(self) -> None:
        """Called once at the end of each backward, by the thread that has called it."""

    def _begin_step(self) -> None:
        """RuntimeError if this is not in backward."""
        rate = None if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])
        info = StepInfo(self.steps, rate, updated=self._optimizer_steps.take())
        self._current = StepExchange(info)
        if self._momentum is not None:
            self._momentum.expect(self.steps)
        torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)

    def _end_step(self, step: StepExchange) -> None:
        if not step.finite:
            self._exchange.undo(step.info.step)
            self.overflowed_steps += 1
        self.steps += 1
