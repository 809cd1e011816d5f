"""Memory in huge pages: as large as asked for, and aligned where that matters."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from thinwire import _native
from thinwire.gradient import pages

MAPPING = re.compile("([0-9a-f]+)-([0-9a-f]+) ")
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
GRANTED = sys.platform == "linux" and THP.exists() and "[never]" not in THP.read_text()


@pytest.mark.parametrize("numel", [0, 1, 1000, 524_287, 524_288, 1_048_577])
def test_as_many_elements_as_asked_for_from_a_boundary_on(numel: int) -> None:
    x = pages.empty(numel)
    assert (x.numel(), x.dtype, x.is_contiguous()) == (numel, torch.float32, True)
    assert 4 * numel < pages.HUGE_NBYTES or x.data_ptr() % pages.HUGE_NBYTES == 0
    x.fill_(3.0)
    assert bool((x == 3.0).all())


@pytest.mark.parametrize("numel", [10, 600_000])
def test_a_moved_tensor_has_the_same_bits(numel: int) -> None:
    x = torch.randn(numel)
    assert torch.equal(pages.moved(x), x)


@pytest.mark.skipif(not GRANTED, reason="this system grants no huge pages")
def test_memory_that_is_written_is_in_huge_pages() -> None:
    x = pages.empty(8 << 20).zero_()
    assert huge_nbytes(x) >= 4 * x.numel() // 2


@pytest.mark.skipif(not GRANTED, reason="this system grants no huge pages")
def test_moving_pages_that_are_there_changes_no_bits() -> None:
    x = torch.randn(8 << 20)
    expected = x.clone()
    _native.prefer_huge_pages(x)
    assert torch.equal(x, expected)


def huge_nbytes(x: Tensor) -> int:
    """Of the mappings that hold ``x``, as the kernel counts them.

    Not of the whole process, before and after: the memory may be one that another tensor has left,
    in huge pages already.
    """
    begin, end, found, inside = x.data_ptr(), x.data_ptr() + 4 * x.numel(), 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if (mapping := MAPPING.match(line)) is not None:
            first, last = (int(number, 16) for number in mapping.groups())
            inside = first < end and begin < last
        elif inside and line.startswith("AnonHugePages:"):
            found += 1024 * int(line.split()[1])
    return found
