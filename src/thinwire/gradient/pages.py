"""Memory for what is as large as gradients, in huge pages.

Every kernel streams through megabytes. In pages of 4 kB much of its time goes into looking up where
they are, above all in a virtual machine, which looks up twice: to read a gradient took half as long
in huge pages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire import _native

HUGE_NBYTES = 2 << 20


def empty(numel: int) -> Tensor:
    """A flat float32 tensor with nothing meaningful in it.

    If it is larger than a huge page, it begins with one. The bytes before it are never touched, so
    no memory is used for them.
    """
    if 4 * numel < HUGE_NBYTES:
        return torch.empty(numel)
    room = torch.empty(numel + HUGE_NBYTES // 4)
    skipped = -room.data_ptr() % HUGE_NBYTES // 4
    found = room[skipped : skipped + numel]
    _native.prefer_huge_pages(found)
    return found


def moved(x: Tensor) -> Tensor:
    """A copy of a flat float32 tensor there, or the tensor itself if it is too small for that."""
    return x if 4 * x.numel() < HUGE_NBYTES else empty(x.numel()).copy_(x)
