"""``OneBit``: one bit per element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire import _native
from thinwire.checks import check_between, check_choice
from thinwire.codec.arena import encode_anew
from thinwire.codec.base import MAX_NUMEL, Payload, accepted, finite
from thinwire.errors import ConfigError

RUN = 64
"""Elements per run; a run of zeros is sent as zeros."""


@dataclass(frozen=True, slots=True)
class OneBit:
    """Keep every sign, and one magnitude for all, or for each block of elements.

    About 32 times smaller than float32. Biased, so pair it with ``Residual``.

    ``scale`` is "l1" (the mean magnitude, always a contraction) or "l2" (root mean square, which
    keeps the norm but can enlarge the error of heavy-tailed tensors). ``block`` is how many
    elements share a scale: a multiple of 64, or None for the whole tensor.

    ``stretch`` is how many times that is sent, between 0 and 2: any "l1" is a contraction then. 1
    leaves the smallest residual after one step; with feedback somewhat more leaves less in the
    long run, because elements much larger than the mean arrive in fewer steps.

    One bit cannot say zero, but a run of 64 elements that are all zero is left out of the mean
    and decodes to zeros: rows that never have a gradient never move.

    Payload, little-endian:
      block u32       elements per scale, below numel; 0: one scale for all
      zero_runs u32   runs of 64 elements (the last may be shorter) that hold only zeros
      scales f32[]    from 0 to 2^100; one, or ceil(numel / block); none if numel is 0
      signs           ceil(numel / 8) bytes; bit i of byte j is 1 where element 8 j + i is below 0
      zero map        only if zero_runs > 0: ceil(runs / 8) bytes, bit set where a run is zero
    Unused bits are zero, and so are the signs of zero runs.
    """

    scale: str = "l1"
    block: int | None = None
    stretch: float = 1.0

    name: ClassVar[str] = "onebit"
    wire_id: ClassVar[int] = 4
    sparse: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_choice(self.scale, ("l1", "l2"), owner="OneBit", field="scale")
        if self.block is not None and not _is_block(self.block):
            raise ConfigError(f"OneBit: block must be a positive multiple of 64, got {self.block}")
        check_between(self.stretch, 0.0, 2.0, owner="OneBit", field="stretch")

    @property
    def native_scale(self) -> _native.SignScale:
        return _native.SignScale.L1 if self.scale == "l1" else _native.SignScale.L2

    @property
    def native_block(self) -> int:
        return self.block or 0

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return encode_anew(self, x, seed=seed)

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        del seed  # nothing here is random
        scale, block = self.native_scale, self.native_block
        return finite(_native.onebit_encode(x, scale, block, out, self.stretch), self.name)

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        accepted(_native.onebit_decode(payload, out), "onebit", out.numel())

    @staticmethod
    def check(payload: Payload, numel: int) -> None:
        accepted(_native.onebit_check(payload, numel), "onebit", numel)

    @staticmethod
    def add(payload: Payload, out: Tensor, *, weight: float) -> None:
        accepted(_native.onebit_add(payload, out, weight), "onebit", out.numel())

    @staticmethod
    def sum(payloads: Sequence[Payload], out: Tensor, *, weight: float) -> None:
        accepted(_native.onebit_sum(payloads, weight, out), "onebit", out.numel())

    def max_nbytes(self, numel: int) -> int:
        return _native.onebit_max_nbytes(numel, self.native_block)


def _is_block(block: int) -> bool:
    return isinstance(block, int) and 0 < block <= MAX_NUMEL and block % RUN == 0
