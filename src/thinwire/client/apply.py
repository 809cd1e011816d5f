"""``AtOnce``: apply each version by one optimizer step, of all parameters at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from thinwire.client.servers import Servers
from thinwire.exchange.roles import decode_into
from thinwire.gradient.pieces import batches
from thinwire.optim.shared_momentum import MomentumSource
from thinwire.watch.stats import Tally

GROUP_NUMEL = 1 << 20
"""Elements that are decoded as soon as they are there, while others are on their way."""


class Applying(Protocol):
    """How a client applies the versions of its servers to its weights."""

    @property
    def is_settled(self) -> bool:
        """Whether no version is awaited, or applied to a part of the weights only."""

    def check_read(self) -> None:
        """Raise ConfigError if a gradient may be one of weights that were not up to date."""

    def settle(self) -> None:
        """Wait for what is awaited, and apply it."""

    def advance(self, *, step: int) -> None:
        """Take the next version after the push of ``step``, and all others that are there."""

    def end(self) -> None:
        """Remove all hooks from the network and the optimizer."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What versions are applied to, and where they come from."""

    servers: Servers
    parameters: Mapping[str, Tensor]
    optimizer: Optimizer
    scheduler: LRScheduler | None
    tally: Tally
    deadline_seconds: float
    momentum: MomentumSource | None = None
    """Of the optimizer, if pushes carry it."""

    def decode(
        self, version: int, numbers: Sequence[int], mean: Mapping[str, Tensor], *, step: int
    ) -> None:
        """Wait for these pieces of a version, and write them into ``mean``."""
        updates = self.servers.updates
        updates.wait_for(version, numbers, step=step, deadline_seconds=self.deadline_seconds)
        pieces = [self.servers.pieces[number] for number in numbers]
        update = updates.take(version, numbers)
        decode_into(mean, pieces, update)
        self.tally.pull(pieces, update)

    def give(self, name: str, mean: Tensor) -> None:
        """Make ``mean`` the gradient that the optimizer applies."""
        parameter = self.parameters[name]
        parameter.grad = mean.view(parameter.shape).to(parameter)

    def step_optimizer(self, version: int) -> None:
        """Apply the gradients that were given, which are those of this version."""
        if self.momentum is not None:
            self.momentum.expect(version - 1)
        self.optimizer.step()

    def step_scheduler(self) -> None:
        """Call it once for each version."""
        if self.scheduler is not None:
            self.scheduler.step()


class AtOnce:
    """Waits for the whole of a version before weights change. Gradients become its mean."""

    is_settled = True

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        numbers = iter(range(len(trained.servers.pieces)))
        groups = batches(trained.servers.pieces, most_numel=GROUP_NUMEL)
        self._groups = [[next(numbers) for _ in group] for group in groups]

    def check_read(self) -> None:
        """Weights are always up to date between steps."""

    def settle(self) -> None:
        """Nothing is ever awaited between steps."""

    def advance(self, *, step: int) -> None:
        self._apply_next(step)
        while self.trained.servers.updates.has_next():
            self._apply_next(step)

    def catch_up(self, *, step: int) -> None:
        """Apply the versions before this worker joined. Gradients stay what they were."""
        servers, parameters = self.trained.servers, self.trained.parameters
        before = {
            name: None if p.grad is None else p.grad.clone() for name, p in parameters.items()
        }
        while servers.updates.version < servers.version:
            self._apply_next(step)
        for name, parameter in parameters.items():
            parameter.grad = before[name]

    def end(self) -> None:
        """There are no hooks."""

    def _apply_next(self, step: int) -> None:
        """Wait for the next version, decode it as it comes, and step once."""
        trained = self.trained
        version = trained.servers.updates.version + 1
        mean = {name: _room(p) for name, p in trained.parameters.items()}
        for numbers in self._groups:
            trained.decode(version, numbers, mean, step=step)
        trained.servers.updates.applied_all(version)
        for name, flat in mean.items():
            trained.give(name, flat)
        trained.step_optimizer(version)
        trained.step_scheduler()


def _room(parameter: Tensor) -> Tensor:
    """Where an update is decoded to: the gradient itself, if it has the right form."""
    grad = parameter.grad
    if grad is not None and grad.dtype == torch.float32 and grad.is_cpu and grad.is_contiguous():
        return grad.view(-1)
    return torch.empty(parameter.numel())
