"""``Target``: the tensors that versions are applied to, and at which learning rates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.optim.shared_momentum import MomentumSource


class Rates:
    """Sets the learning rate of each version in the groups of an optimizer.

    Workers send the rate of the first group. Others keep their ratio to it, which is that of
    ``initial_lr`` where a scheduler has noted it. A rate of 0 means not given: nothing is set.
    """

    def __init__(
        self, optimizer: Optimizer, rates: Mapping[int, float], fixed: float | None = None
    ) -> None:
        """``fixed``, if given, is the rate of every version."""
        self._groups = optimizer.param_groups
        self._rates, self._fixed = rates, fixed
        self._bases = [float(group.get("initial_lr", group["lr"])) for group in self._groups]

    def set(self, version: int) -> None:
        rate = self._rates[version] if self._fixed is None else self._fixed
        if not rate or rate == float(self._groups[0]["lr"]):
            return
        for group, base in zip(self._groups, self._bases, strict=True):
            _set_rate(group, self._scaled(base, rate))

    def _scaled(self, base: float, rate: float) -> float:
        if base == self._bases[0]:
            return rate
        if not self._bases[0]:
            raise ConfigError(
                "replay: the optimizer's groups have different learning rates, and that of the "
                "first is 0, so that others cannot follow it: begin with a later checkpoint"
            )
        return base * (rate / self._bases[0])  # as schedulers do it: each base times one factor


def _set_rate(group: dict[str, object], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


@dataclass(frozen=True, slots=True)
class Target:
    """What versions are applied to."""

    trained: Mapping[str, Tensor]
    buffers: Collection[str]
    optimizer: Optimizer
    rates: Rates
    momentum: MomentumSource | None

    def step(self, version: int, mean: Mapping[str, Tensor]) -> None:
        """Move by the mean of this version."""
        for name, tensor in self.trained.items():
            moved = mean[name].view(tensor.shape).to(tensor)
            if name in self.buffers:
                tensor.sub_(moved)
            else:
                tensor.grad = moved
        self.rates.set(version)
        if self.momentum is not None:
            self.momentum.expect(version - 1)
        self.optimizer.step()
