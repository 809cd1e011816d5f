"""``TopK``: the elements of largest magnitude."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire import _native
from thinwire.checks import check_choice, check_ratio
from thinwire.codec.arena import encode_anew
from thinwire.codec.base import Payload, accepted, finite

_VALUES = {
    "float32": _native.Values.FLOAT32,
    "float16": _native.Values.FLOAT16,
    "int8": _native.Values.INT8,
}
_SELECT = {"sampled": _native.Select.SAMPLED, "exact": _native.Select.RADIX}


@dataclass(frozen=True, slots=True)
class TopK:
    """Keep the elements of largest magnitude: ``ratio`` of them, rounded up.

    Exactly ``ceil(ratio * numel)`` elements, the lower index first among equals; fewer only where
    fewer are not zero. Biased, so pair it with ``Residual``.

    ``values`` is how kept values travel: "float32"; "float16" with a shared power of two, so that
    no range is lost; "int8" with a scale for every 256. ``select`` is how they are found, with the
    same result: "sampled" guesses a threshold from a sample, passes once and cuts exactly; "exact"
    counts first, and takes longer, but the same time for any tensor.

    Payload: that of ``Nonzero``.
    """

    ratio: float
    values: str = "float32"
    select: str = "sampled"

    name: ClassVar[str] = "topk"
    wire_id: ClassVar[int] = 5
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ratio(self.ratio, owner="TopK")
        check_choice(self.values, tuple(_VALUES), owner="TopK", field="values")
        check_choice(self.select, tuple(_SELECT), owner="TopK", field="select")

    @property
    def native_values(self) -> _native.Values:
        return _VALUES[self.values]

    @property
    def native_select(self) -> _native.Select:
        return _SELECT[self.select]

    def kept(self, numel: int) -> int:
        """How many of ``numel`` elements are kept."""
        return math.ceil(self.ratio * numel)

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return encode_anew(self, x, seed=seed)

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        del seed  # the sample decides how fast, never what
        k, select, values = self.kept(x.numel()), self.native_select, self.native_values
        return finite(_native.topk_encode(x, k, select, values, out), self.name)

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        accepted(_native.sparse_decode(payload, out), "topk", out.numel())

    @staticmethod
    def check(payload: Payload, numel: int) -> None:
        accepted(_native.sparse_check(payload, numel), "topk", numel)

    @staticmethod
    def add(payload: Payload, out: Tensor, *, weight: float) -> None:
        accepted(_native.sparse_add(payload, out, weight), "topk", out.numel())

    @staticmethod
    def sum(payloads: Sequence[Payload], out: Tensor, *, weight: float) -> None:
        accepted(_native.sparse_sum(payloads, weight, out), "topk", out.numel())

    def max_nbytes(self, numel: int) -> int:
        return _native.sparse_max_nbytes(numel, self.kept(numel), self.native_values)
