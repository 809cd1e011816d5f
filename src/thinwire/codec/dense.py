"""``Float32``, ``Float16`` and ``BFloat16``: every element, in 32 or 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from thinwire import _native
from thinwire.codec.arena import encode_anew
from thinwire.codec.base import Payload, accepted, finite


@dataclass(frozen=True, slots=True)
class Float32:
    """Every element as it is: the baseline, and what carries an inf or a nan.

    Payload: numel float32, little-endian.
    """

    name: ClassVar[str] = "float32"
    wire_id: ClassVar[int] = 1
    sparse: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return encode_anew(self, x, seed=seed)

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        del seed  # nothing here is random
        nbytes = 4 * x.numel()
        if len(out) < nbytes:
            raise ValueError(f"float32: out has {len(out)} bytes, the payload {nbytes}")
        np.frombuffer(out, np.uint8, nbytes)[:] = x.numpy().view(np.uint8)
        return nbytes

    @staticmethod
    def check(payload: Payload, numel: int) -> None:
        nbytes = len(memoryview(payload))
        fault = f"nbytes: found {nbytes}, expected {4 * numel}"
        accepted(fault if nbytes != 4 * numel else None, "float32", numel)

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        Float32.check(payload, out.numel())
        # As bytes: a payload may be unaligned, and torch warns of one that is read-only.
        source = np.frombuffer(payload, np.uint8)
        if source.ctypes.data != out.data_ptr():  # a sum may be where it belongs already
            out.numpy().view(np.uint8)[:] = source

    @staticmethod
    def add(payload: Payload, out: Tensor, *, weight: float) -> None:
        accepted(_native.float32_add(payload, out, weight), "float32", out.numel())

    @staticmethod
    def sum(payloads: Sequence[Payload], out: Tensor, *, weight: float) -> None:
        """As every Summing codec; and ``out`` may be one of them."""
        accepted(_native.float32_sum(payloads, weight, out), "float32", out.numel())

    def max_nbytes(self, numel: int) -> int:
        return 4 * numel


def bytes_of(x: Tensor) -> memoryview:
    """The memory of a contiguous tensor: a view, not a copy."""
    return x.numpy().view("u1").data


@dataclass(frozen=True, slots=True)
class Float16:
    """Every element as an IEEE half, rounded to nearest even.

    Magnitudes above 65504 become 65504, so pair it with ``Residual`` where gradients may be large.

    Payload: numel float16, little-endian; no inf, no nan.
    """

    name: ClassVar[str] = "float16"
    wire_id: ClassVar[int] = 2
    sparse: ClassVar[bool] = False

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return encode_anew(self, x, seed=seed)

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        del seed  # nothing here is random
        return finite(_native.half_encode(_native.Half.FLOAT16, x, out), self.name)

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        accepted(_native.half_decode(_native.Half.FLOAT16, payload, out), "float16", out.numel())

    @staticmethod
    def add(payload: Payload, out: Tensor, *, weight: float) -> None:
        accepted(
            _native.half_add(_native.Half.FLOAT16, payload, out, weight), "float16", out.numel()
        )

    def max_nbytes(self, numel: int) -> int:
        return 2 * numel


@dataclass(frozen=True, slots=True)
class BFloat16:
    """Every element as the upper half of a float32, rounded to nearest even.

    Payload: numel bfloat16, little-endian; no inf, no nan.
    """

    name: ClassVar[str] = "bfloat16"
    wire_id: ClassVar[int] = 3
    sparse: ClassVar[bool] = False

    def encode(self, x: Tensor, *, seed: int) -> bytearray:
        return encode_anew(self, x, seed=seed)

    def encode_into(self, x: Tensor, out: memoryview, *, seed: int) -> int:
        del seed  # nothing here is random
        return finite(_native.half_encode(_native.Half.BFLOAT16, x, out), self.name)

    @staticmethod
    def decode(payload: Payload, out: Tensor) -> None:
        accepted(_native.half_decode(_native.Half.BFLOAT16, payload, out), "bfloat16", out.numel())

    @staticmethod
    def add(payload: Payload, out: Tensor, *, weight: float) -> None:
        accepted(
            _native.half_add(_native.Half.BFLOAT16, payload, out, weight), "bfloat16", out.numel()
        )

    def max_nbytes(self, numel: int) -> int:
        return 2 * numel
