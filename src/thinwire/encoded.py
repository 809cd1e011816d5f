"""What compression makes of a tensor, and sums of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.codec import registry
from thinwire.codec.base import Payload
from thinwire.codec.dense import Float32


@dataclass(frozen=True, slots=True)
class Encoded:
    """One compressed tensor, ready for a frame."""

    wire_id: int
    numel: int
    payload: Payload

    @property
    def nbytes(self) -> int:
        return len(self.payload)

    def decode(self, out: Tensor | None = None) -> Tensor:
        """What the receiver will see, as a flat float32 tensor; into ``out`` if it is given."""
        out = torch.empty(self.numel) if out is None else out
        registry.decode(self.wire_id, self.payload, out)
        return out


def add_up(pushes: Sequence[Encoded], weight: float, out: Tensor, *, cleared: bool = False) -> None:
    """Do ``out = weight * (sum of pushes)``, in their order. float32 ones may be views of it.

    ``cleared`` says that it is zeros already, which spares lists of elements a pass over it.
    """
    kinds = {push.wire_id for push in pushes}
    if cleared and all(registry.codec_class(kind).sparse for kind in kinds):
        for push in pushes:
            registry.add(push.wire_id, push.payload, out, weight=weight)
        return
    if len(kinds) == 1:
        payloads = [push.payload for push in pushes]
        registry.sum_up(kinds.pop(), payloads, out, weight=weight)
        return
    total = torch.zeros_like(out) if Float32.wire_id in kinds else out.zero_()
    for push in pushes:
        registry.add(push.wire_id, push.payload, total, weight=weight)
    if total is not out:
        out.copy_(total)
