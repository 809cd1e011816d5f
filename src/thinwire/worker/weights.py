"""Checksums of weights, by which servers notice workers that begin with others."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from thinwire import _native
from thinwire.codec.dense import bytes_of


def checksums_of(weights: Iterable[Tensor]) -> tuple[int, ...]:
    """The CRC32C of the elements of each, in order, whatever their layout, device and type."""
    return tuple(_checksum(one.detach()) for one in weights)


def _checksum(weights: Tensor) -> int:
    flat = weights.cpu().contiguous().view(-1)
    return _native.crc32c(bytes_of(flat.view(torch.uint8)))
