"""One bucket of a DDP model: its memory, and the future that DDP waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from thinwire import _native
from thinwire.gradient.pieces import Piece
from thinwire.worker.exchange import Unit
from thinwire.worker.sides import Round
from thinwire.worker.staging import Staged

LEAST_FLOAT16_OVERFLOW = 65520.0
"""What is smaller is rounded to a finite float16."""


class Bucket:
    """The home of a bucket's gradients."""

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

    def unit(self, pieces: Sequence[Piece], round_: Round) -> Unit:
        flat = self.flat()
        gradients = {name: flat[start:stop] for name, (start, stop) in self._places.items()}
        return Unit(pieces, gradients, round_)

    def store(self) -> bool:
        """Give DDP what the gradients are now."""
        self._staged.store()
        if self._dtype != torch.float16:
            return True
        return _native.max_abs(self.flat()) < LEAST_FLOAT16_OVERFLOW

    def complete(self) -> None:
        self._staged.complete(self.future)
