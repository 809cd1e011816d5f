"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from thinwire import _native

# Several test processes share few processors, and OpenMP threads that wait for each other spin:
# tests with small tensors took 20 times as long.
torch.set_num_threads(1)


@pytest.fixture
def restored_kernels() -> Iterator[None]:
    """Instruction set and threads of the native module are afterwards what they were."""
    isa, threads = _native.isa(), _native.threads()
    yield
    assert _native.set_isa(isa)
    _native.set_threads(threads)
