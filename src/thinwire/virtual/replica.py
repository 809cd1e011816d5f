"""``Replica``: the one network of a virtual cluster, which stands for that of every worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from thinwire.gradient.pieces import Key
from thinwire.optim.shared_momentum import MomentumSource
from thinwire.virtual.exchange import Gradients

LossOf = Callable[[int], Tensor]
"""The loss of a worker, by its rank."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One worker's gradient: the version of the weights it is of, their learning rate, its loss."""

    worker: int
    version: int
    learning_rate: float
    loss: float
    gradients: Gradients


class Replica:
    """Weights and optimizer. Workers with the same version have the same weights, bit for bit,
    because each applies every update in order: so one copy of both is enough for all."""

    def __init__(
        self, net: nn.Module, optimizer: Optimizer, momentum: MomentumSource | None = None
    ) -> None:
        self._parameters = {n: p for n, p in net.named_parameters() if p.requires_grad}
        self._net, self._optimizer, self._momentum = net, optimizer, momentum
        self.keys = [Key(name, tuple(p.shape)) for name, p in self._parameters.items()]
        self.version = 0

    def evaluate(self, workers: Iterable[int], loss_of: LossOf) -> list[Evaluation]:
        """A backward pass of each of ``workers``, all on the weights and buffers as they are now.

        Gradients that parameters had are replaced. Changes of buffers are kept from worker 0 only.
        """
        before = [buffer.clone() for buffer in self._net.buffers()]
        after = before
        evaluations = []
        for worker in workers:
            _restore(self._net, before)
            evaluations.append(self._evaluate(worker, loss_of(worker)))
            if worker == 0:
                after = [buffer.clone() for buffer in self._net.buffers()]
        _restore(self._net, after)
        return evaluations

    def apply(self, mean: Gradients) -> None:
        """One optimizer step, to the next version."""
        for name, parameter in self._parameters.items():
            parameter.grad = mean[name].to(parameter, copy=True)  # optimizers may change it
        if self._momentum is not None:
            self._momentum.expect(self.version)
        self._optimizer.step()
        self.version += 1

    def _evaluate(self, worker: int, loss: Tensor) -> Evaluation:
        rate = float(self._optimizer.param_groups[0]["lr"])
        gradients = self._backward(loss)
        return Evaluation(worker, self.version, rate, float(loss.detach()), gradients)

    def _backward(self, loss: Tensor) -> dict[str, Tensor]:
        """The gradients of one worker; zero for parameters that its loss does not use."""
        for parameter in self._parameters.values():
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad
            for name, p in self._parameters.items()
        }


def _restore(net: nn.Module, values: Sequence[Tensor]) -> None:
    for buffer, value in zip(net.buffers(), values, strict=True):
        buffer.copy_(value)
