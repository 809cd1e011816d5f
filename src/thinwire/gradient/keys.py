"""What is known of a gradient without its values: its name and shape."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """A gradient's identity. State is kept by ``name``: buckets, ranks and world sizes change."""

    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)
