"""Allocate gradient-sized buffers in huge pages.

Every kernel streams through megabytes. With pages of 4 kB it spends much of its time on TLB misses,
above all in a virtual machine, which translates twice: reading a gradient took half as long in huge
pages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire import _native

HUGE_NBYTES = 2 << 20


def empty(numel: int) -> Tensor:
    """An uninitialised flat float32 tensor.

    If it is larger than a huge page, it begins with one. The bytes before it are never touched, so
    no memory is used for them.
    """
    if 4 * numel < HUGE_NBYTES:
        return torch.empty(numel)
    room = torch.empty(numel + HUGE_NBYTES // 4)
    skipped = -room.data_ptr() % HUGE_NBYTES // 4
    aligned = room[skipped : skipped + numel]
    _native.prefer_huge_pages(aligned)
    return aligned


def moved(x: Tensor) -> Tensor:
    """A copy of a flat float32 tensor in huge pages, or the tensor itself if it is too small."""
    return x if 4 * x.numel() < HUGE_NBYTES else empty(x.numel()).copy_(x)
