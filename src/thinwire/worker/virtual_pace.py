"""How the workers of a virtual cluster get to the next version: here, all at the same pace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from thinwire.worker.virtual_exchange import Exchanged, VirtualExchange
from thinwire.worker.virtual_replica import Evaluation, LossOf, Replica


@dataclass(frozen=True, slots=True)
class Advance:
    """What led to one version: gradients in the order of arrival, and the simulated time of it."""

    exchanged: Exchanged
    arrived: Sequence[Evaluation]
    refused: int
    clock: float


class Pace(Protocol):
    def advance(self, replica: Replica, loss_of: LossOf, *, step: int) -> Advance:
        """Evaluate and exchange gradients until the next version can be applied. Does not apply
        it."""


class Lockstep:
    """Every worker contributes one gradient to every version, which takes a second."""

    def __init__(self, exchange: VirtualExchange) -> None:
        self._exchange = exchange

    def advance(self, replica: Replica, loss_of: LossOf, *, step: int) -> Advance:
        arrived = replica.evaluate(range(len(self._exchange.workers)), loss_of)
        exchanged = self._exchange.average(
            [one.gradients for one in arrived], step=step, learning_rate=arrived[0].learning_rate
        )
        return Advance(exchanged, arrived, refused=0, clock=float(step + 1))
