"""``RandomK``: elements picked by a seed that all workers share."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thinwire import _native
from thinwire.checks import check_ratio
from thinwire.codec.arena import encode_anew
from thinwire.codec.base import Payload
from thinwire.errors import CorruptPayloadError, NonFiniteError

_HEADER = struct.Struct("<QI")  # seed, count


@dataclass(frozen=True, slots=True)
class RandomK:
    """Keep ``ceil(ratio * numel)`` elements at random, without replacement.

    The indices follow from the seed and are not sent. Workers that use the same seed keep the same
    elements. Values are not scaled up, so it is biased: pair it with ``Residual``.

    Payload, little-endian: seed u64, count u32 (at most numel), then count finite float32 values in
    the order in which the seed draws their indices.
    """

    ratio: float

    name: ClassVar[str] = "randomk"
    wire_id: ClassVar[int] = 7
    sparse: ClassVar[bool] = True
    shared_seed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ratio(self.ratio, owner="RandomK")

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return encode_anew(self, x, seed=seed)

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        count = math.ceil(self.ratio * x.numel())
        values = x[_indices(seed, x.numel(), count)]
        if not _native.all_finite(values):
            raise NonFiniteError(
                "randomk: a chosen element is inf or nan; only float32 can carry it"
            )
        nbytes = self.max_nbytes(x.numel())
        if len(out) < nbytes:
            raise ValueError(f"randomk: out has {len(out)} bytes, the payload {nbytes}")
        _HEADER.pack_into(out, 0, seed, count)
        out[_HEADER.size : nbytes] = values.numpy().view(np.uint8).data
        return nbytes

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        indices, values = _read(payload, out.numel())
        out.zero_()
        out[indices] = values

    @staticmethod
    def add(payload: Payload, out: Tensor, *, weight: float) -> None:
        indices, values = _read(payload, out.numel())
        out[indices] += values * weight

    def max_nbytes(self, numel: int) -> int:
        return _HEADER.size + 4 * math.ceil(self.ratio * numel)


def _indices(seed: int, numel: int, count: int) -> Tensor:
    indices = torch.empty(count, dtype=torch.int32)
    _native.random_indices(seed, numel, indices)
    return indices


def _read(payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
    data = memoryview(payload).cast("B")
    if len(data) < _HEADER.size:
        raise CorruptPayloadError(
            f"randomk: {len(data)} bytes, the header alone has {_HEADER.size}"
        )
    seed, count = _HEADER.unpack_from(data)
    expected = _HEADER.size + 4 * count
    if count > numel or len(data) != expected:
        raise CorruptPayloadError(
            f"randomk: {len(data)} bytes for {count} of {numel} elements, expected {expected}"
        )
    values = torch.from_numpy(np.frombuffer(data[_HEADER.size :], "<f4").copy())
    if not _native.all_finite(values):
        raise CorruptPayloadError(f"randomk: a value is inf or nan ({numel} elements)")
    return _indices(seed, numel, count), values
