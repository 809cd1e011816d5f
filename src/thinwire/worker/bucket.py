"""One bucket of a DDP model on its way through the pipeline, cut into units."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from thinwire import _native
from thinwire.gradient.pieces import Piece
from thinwire.worker.exchange import Exchange, Transit, Unit
from thinwire.worker.sides import Round
from thinwire.worker.staging import Staged

LEAST_FLOAT16_OVERFLOW = 65520.0
"""What is smaller is rounded to a finite float16."""


class Bucket:
    """A bucket's memory, and the future that DDP waits for."""

    def __init__(
        self,
        staged: Staged,
        places: Mapping[str, tuple[int, int]],
        parameters: Mapping[str, Tensor],
    ) -> None:
        """``places`` are the start and the end of every gradient in the bucket."""
        self._staged = staged
        self._places = places
        self._parameters = parameters
        self._dtype = next(iter(parameters.values())).dtype
        self._flat: Tensor | None = None
        self.future = staged.future()

    def trained(self) -> list[str]:
        """The gradients to exchange. A frozen parameter's must wait: nobody would apply it."""
        return [name for name, p in self._parameters.items() if p.requires_grad]

    def give_to_unused(self) -> None:
        """Let parameters that DDP has left alone have their gradient."""
        for name in self.trained():
            parameter, (start, stop) = self._parameters[name], self._places[name]
            mean = self._staged.stored()[start:stop].view(parameter.shape)
            if parameter.grad is None:
                parameter.grad = mean.clone()
            elif not torch.equal(parameter.grad, mean):
                parameter.grad.copy_(mean)

    def flat(self) -> Tensor:
        """All gradients, once they are here."""
        if self._flat is None:
            self._flat = self._staged.flat()
        return self._flat

    def gradients(self) -> dict[str, Tensor]:
        flat = self.flat()
        return {name: flat[start:stop] for name, (start, stop) in self._places.items()}

    def store(self) -> bool:
        """Give DDP what the gradients are now. Whether its number format can hold them."""
        self._staged.store()
        if self._dtype != torch.float16:
            return True
        return _native.max_abs(self.flat()) < LEAST_FLOAT16_OVERFLOW

    def complete(self) -> None:
        self._staged.complete(self.future)


@dataclass(slots=True)
class Step:
    """One backward pass: what its buckets have in common."""

    number: int
    learning_rate: float | None
    buckets: list[Bucket] = field(default_factory=list)
    finite: bool = True
    norm: float | None = None

    def take_norm(self) -> None:
        """Take the norm of the whole gradient: all buckets must be there."""
        squares = (_native.sum_squares(bucket.flat()) for bucket in self.buckets)
        self.norm = math.sqrt(math.fsum(squares))

    def round(self) -> Round:
        return Round(self.number, self.learning_rate, self.norm)


class UnitJob:
    """The stages of one unit. The last of a bucket completes it; the last of a step ends that."""

    def __init__(
        self,
        exchange: Exchange,
        step: Step,
        bucket: Bucket,
        pieces: Sequence[Piece],
        *,
        completes_bucket: bool,
        end_of_step: Callable[[Step], None] | None,
    ) -> None:
        self._exchange = exchange
        self._step = step
        self._bucket = bucket
        self._pieces = pieces
        self._completes_bucket = completes_bucket
        self._end_of_step = end_of_step
        self._transit: Transit | None = None
        self.stages = (self._push, self._answer, self._receive)

    def __str__(self) -> str:
        return f"step {self._step.number}: {', '.join(piece.name for piece in self._pieces)}"

    def finish(self) -> None:
        # Also after an error: backward would never return. It is raised at the end of backward.
        if self._completes_bucket:
            self._bucket.complete()

    def _push(self) -> None:
        unit = Unit(self._pieces, self._bucket.gradients(), self._step.round())
        self._transit = self._exchange.push(unit)

    def _answer(self) -> None:
        if self._transit is not None:
            self._exchange.answer(self._transit)

    def _receive(self) -> None:
        finite = self._transit is None or self._exchange.receive(self._transit)
        if self._completes_bucket:
            finite = self._bucket.store() and finite
        if not finite:
            self._step.finite = False
        if self._end_of_step is not None:
            self._end_of_step(self._step)
