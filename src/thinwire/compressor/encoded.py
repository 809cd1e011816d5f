"""``Encoded``, what compression makes of a tensor: decoded, added up, or passed on untouched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.codec import registry
from thinwire.codec.arena import Arena, encode
from thinwire.codec.dense import Float32
from thinwire.feedback.base import LARGEST
from thinwire.wire.body import EncodedBytes


@dataclass(frozen=True, slots=True)
class Encoded(EncodedBytes):
    """One compressed tensor, ready for a frame: its wire id, numel and payload."""

    def decode(self, out: Tensor | None = None) -> Tensor:
        """What the receiver will see, as a flat float32 tensor; into ``out`` if it is given."""
        return decoded(self, out)


def decoded(encoded: EncodedBytes, out: Tensor | None = None) -> Tensor:
    """What ``encoded`` stands for, as a flat float32 tensor; in ``out`` if it is given."""
    out = torch.empty(encoded.numel) if out is None else out
    registry.decode(encoded.wire_id, encoded.payload, out)
    return out


class Overflowed(Exception):
    """The gradient is not finite, or too large: the step must not have happened."""


def untouched(flat: Tensor, arena: Arena) -> Encoded:
    """The values as they are, but for those too large to use, which become the inf they stand for.

    So the receiver sees an overflow wherever the sender saw one.
    """
    too_large = flat.abs() > LARGEST
    if too_large.any():
        flat = torch.where(too_large, torch.copysign(torch.tensor(math.inf), flat), flat)
    return Encoded(Float32.wire_id, flat.numel(), encode(Float32(), flat, arena, seed=0))


def add_up(
    pushes: Sequence[EncodedBytes], weight: float, out: Tensor, *, cleared: bool = False
) -> None:
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
