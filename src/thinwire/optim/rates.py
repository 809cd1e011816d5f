"""Learning rates from outside: those that workers sent, set in an optimizer again."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError


class Rates:
    """Sets the learning rate of each version in the groups of an optimizer.

    Workers send the rate of the first group. Others keep their ratio to it, which is that of
    ``initial_lr`` where a scheduler has noted it. A rate of 0 means not given: nothing is set.
    """

    def __init__(
        self, optimizer: Optimizer, rates: Mapping[int, float], fixed: float | None = None
    ) -> None:
        """``fixed`` is for every version."""
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
