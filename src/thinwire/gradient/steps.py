"""``StepInfo``: what is known of a training step while its gradients are compressed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor


class Updated(IntEnum):
    """Whether weights were updated since the exchange before. Ranks compare it, unless one of them
    does not know."""

    UNKNOWN = 1
    """There was none, or it was not this rank's own: DDP's Join takes part for a rank that is
    done, which makes no optimizer step then."""
    NO = 2
    YES = 3


@dataclass(frozen=True, slots=True)
class Carried:
    """The optimizer's momentum of a piece: factor * momentum + gain * gradient is sent."""

    momentum: Tensor | None
    """Flat float32 in CPU memory; None where there is none yet, which is the same as zeros."""
    factor: float
    gain: float
    runs: memoryview | None = None
    """The same momentum as sign runs, if it has them: less to read."""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One step: what all of its gradients and messages have in common."""

    step: int
    learning_rate: float | None = None
    """What the update of this step will be multiplied by, if it is known."""
    gradient_norm: float | None = None
    """The L2 norm of this worker's whole gradient, all tensors together, if it is known."""
    workers: int = 1
    """How many workers the gradients are averaged over."""
    updated: Updated = Updated.UNKNOWN
    carried: Carried | None = None
    """Of the one piece that is compressed, if it sends momentum."""
