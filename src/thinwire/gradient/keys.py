"""What is known of a gradient without its values: its name and shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)  # without slots: numel is asked for many times in every step
class Key:
    """A gradient's identity. State is kept by ``name``: buckets, ranks and world sizes change."""

    name: str
    shape: tuple[int, ...]

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)
