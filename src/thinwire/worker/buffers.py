"""Memory for messages and payloads, allocated once and used again."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.codec.arena import Slab


class Buffers:
    """Byte tensors in sizes of powers of two. Threads may take and give back at the same time."""

    def __init__(self) -> None:
        self._free: dict[int, list[Tensor]] = {}

    def take(self, nbytes: int) -> Tensor:
        """At least ``nbytes`` bytes, of which none is meaningful."""
        size = 1 << max(nbytes - 1, 0).bit_length()
        try:
            return self._free.setdefault(size, []).pop()
        except IndexError:
            return torch.empty(size, dtype=torch.uint8)

    def give(self, *buffers: Tensor) -> None:
        """Give buffers back, for others to overwrite."""
        for buffer in buffers:
            self._free[buffer.numel()].append(buffer)


def slab(buffer: Tensor) -> Slab:
    """Payloads in a buffer, until it is given back."""
    return Slab(buffer.numpy().data)
