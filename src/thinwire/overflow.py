"""Gradients that are not finite, or so large that sums of them would not be.

Mixed precision overflows on purpose now and then, and skips the step. The peers must see that, but
one inf in a residual would stay there for ever.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from thinwire.codec.arena import Arena, encode
from thinwire.codec.dense import Float32
from thinwire.encoded import Encoded
from thinwire.feedback.base import LARGEST


class Overflowed(Exception):
    """The gradient is not finite, or too large: the step must not have happened."""


def untouched(flat: Tensor, arena: Arena) -> Encoded:
    """The values as they are, but for those too large to use, which become the inf they stand for.

    So whoever receives it sees an overflow wherever the sender saw one.
    """
    too_large = flat.abs() > LARGEST
    if too_large.any():
        flat = torch.where(too_large, torch.copysign(torch.tensor(math.inf), flat), flat)
    return Encoded(Float32.wire_id, flat.numel(), encode(Float32(), flat, arena, seed=0))
