"""``seed_from``: seeds from whole numbers, such as seed, step and worker.

Draws that depend on these numbers alone need no state, so a resumed run draws the same. The global
generator of torch is unchanged.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_from(*numbers: int) -> int:
    """One seed from several numbers; other numbers, or another order, give another seed."""
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


def generator_from(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_from(*numbers))


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Let layers that draw from the global generator, such as dropout, draw from ``numbers``."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_from(*numbers))
        yield
