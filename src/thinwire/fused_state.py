"""The buffers of a tensor's feedback, as fused steps keep them: where they are, and how lazy."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from thinwire import _native
from thinwire.feedback.base import State
from thinwire.gradient import pages


@dataclass(slots=True)
class FusedState:
    """A tensor's buffers, of which the residual may be lazy.

    Between two 1-bit steps the residual buffer holds what was *wanted* and ``scales`` what was
    sent for it. Together they are the residual, and the next pass forms it while reading: one pass
    over memory instead of two.
    """

    buffers: State
    scales: Tensor | None = None
    block: int = field(default=0)

    def settle(self) -> State:
        """The buffers as feedback knows them."""
        if self.scales is not None:
            _native.onebit_settle(self.buffers["residual"], self.scales, self.block)
            self.scales = None
        return self.buffers

    def successor(self, spare: FusedState | None) -> FusedState:
        """Room for what a step makes of this state, in the memory of ``spare`` if there is one.

        Buffers are written whole by the step; single numbers are what they are here.
        """
        if spare is None:
            spare = FusedState({name: _room_like(buffer) for name, buffer in self.buffers.items()})
        for name, buffer in self.buffers.items():
            if buffer.dim() == 0:
                spare.buffers[name].copy_(buffer)
        return spare

    def save_into(self, saved: FusedState | None) -> FusedState:
        """A copy of this state, in the memory of an older copy if there is one."""
        if saved is None:
            buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
            saved = FusedState(buffers)
        else:
            for name, buffer in self.buffers.items():
                saved.buffers[name].copy_(buffer)
        saved.scales, saved.block = self._copied_scales(saved.scales), self.block
        return saved

    def _copied_scales(self, older: Tensor | None) -> Tensor | None:
        """A copy of the scales, in the memory of an older copy if that has the size."""
        if self.scales is None:
            return None
        if older is None or older.numel() != self.scales.numel():
            return self.scales.clone()
        return older.copy_(self.scales)

    def lazy_scales(self, block: int) -> Tensor:
        """The scales of the lazy residual; zeros, which mean nothing was sent, if it is settled."""
        if self.scales is None or self.block != block:
            self.settle()
            count = _native.onebit_scales(self.buffers["residual"].numel(), block)
            self.scales, self.block = torch.zeros(count), block
        return self.scales

    def room_for_scales(self, like: FusedState) -> Tensor:
        """Where new scales are written, as many as ``like`` has."""
        if self.scales is None or like.scales is None or self.scales.shape != like.scales.shape:
            self.scales = torch.empty_like(like.lazy_scales(like.block))
        self.block = like.block
        return self.scales


def _room_like(buffer: Tensor) -> Tensor:
    return pages.empty(buffer.numel()) if buffer.dim() == 1 else torch.empty_like(buffer)
