"""A worker's pushes: gradients compressed and sent, and what it owes for them.

Refused pushes are a part of that. Nobody may look at it while a push is under way.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thinwire.gradient.flat import flatten
from thinwire.recipe import Recipe
from thinwire.worker.returned import Returned
from thinwire.worker.servers import Servers, finite_push
from thinwire.worker.sides import Round, WorkerSide, norm_of
from thinwire.worker.state import by_parameter, by_piece
from thinwire.worker.stats import Tally

_logger = logging.getLogger(__name__)


class Pushing:
    """Sends gradients of named parameters to the servers that own their pieces."""

    def __init__(
        self,
        servers: Servers,
        parameters: Mapping[str, Tensor],
        recipe: Recipe,
        side: WorkerSide,
        tally: Tally,
    ) -> None:
        self._servers, self._parameters, self._recipe = servers, parameters, recipe
        self._side, self._tally = side, tally
        residual = "residual" in recipe.push_feedback.init(0)
        self._returned = Returned(side.compressor, servers.pieces, residual=residual)
        self._numbers: dict[str, list[int]] = {name: [] for name in parameters}
        for number, piece in enumerate(servers.pieces):
            self._numbers[piece.key.name].append(number)
        self.overflowed = 0
        """How many pieces were left out."""

    def push(self, names: Sequence[str], round_: Round, version: int) -> None:
        """Compress and send these gradients, which are of weights of ``version``."""
        servers = self._servers
        self.take_back_refused()
        flat = {name: _gradient(self._parameters[name]) for name in names}
        if self._recipe.clips_model:
            round_ = replace(round_, gradient_norm=norm_of(flat.values()))
        numbers = [number for name in names for number in self._numbers[name]]
        self._returned.add_to(flat, [servers.pieces[number] for number in numbers])
        for owned in servers.by_owner(numbers):
            pieces = [servers.pieces[number] for number in owned]
            sent, overflowed = finite_push(self._side, pieces, flat, round_)
            if overflowed:
                _logger.warning("step %d: an inf or a nan is left out", round_.step)
            self.overflowed += overflowed
            self._tally.push(pieces, sent)
            servers.push(round_.step, version, round_.learning_rate or 0.0, owned, sent)

    def report(self, step: int, *, every_seconds: float) -> None:
        """Tell the servers what would be lost with this worker, if that is due."""
        for desk in self._servers.desks:
            desk.report(self._owed, step, every_seconds=every_seconds)

    def take_back_refused(self) -> None:
        self._returned.take(self._servers.arrivals.take_refused())

    def state_dict(self) -> dict[str, Any]:
        """What is owed, once the servers have all pushes."""
        for desk in self._servers.desks:
            desk.flush()
        self.take_back_refused()
        return {
            "push": by_parameter(self._servers.pieces, self._side.compressor.state_dict()),
            "returned": {name: kept.clone() for name, kept in self._returned.kept.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], *, steps: int) -> int:
        """Owe what was owed after so many steps. Returns how many steps it really were."""
        compressor, counted = self._side.compressor, self._servers.counted
        compressor.load_state_dict(by_piece(self._servers.pieces, state.get("push", {})))
        if counted > steps:
            self._drop(steps)
        else:
            self._returned.load(state.get("returned", {}))
        compressor.prepare(self._servers.pieces)
        return max(counted, steps)

    def _drop(self, steps: int) -> None:
        owed = self._owed()
        if owed:
            _logger.warning(
                "this worker pushed %d steps before it was lost, its checkpoint is of step %d: "
                "a residual of norm %g in there is out of date and is dropped",
                self._servers.counted,
                steps,
                owed,
            )
        self._side.compressor.load_state_dict({})

    def _owed(self) -> float:
        return math.sqrt(math.fsum(self._side.compressor.owed_squares().values()))


def _gradient(parameter: Tensor) -> Tensor:
    grad = parameter.grad
    return torch.zeros(parameter.numel()) if grad is None else flatten(grad)
