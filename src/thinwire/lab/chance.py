"""Where chance comes from: a few whole numbers, such as seed, step and worker.

What depends on these numbers alone needs no state, so a run that is resumed draws what it would
have drawn. The global generator of torch stays as it is.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_from(*numbers: int) -> int:
    """One seed from several numbers; other numbers, or another order, give another one."""
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
