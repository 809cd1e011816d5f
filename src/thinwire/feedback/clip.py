"""``Clip``: local gradient clipping (Deep Gradient Compression, section 3.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from thinwire import _native
from thinwire.checks import check_choice, check_positive
from thinwire.errors import ConfigError
from thinwire.feedback.base import State
from thinwire.gradient.steps import StepInfo


@dataclass(frozen=True, slots=True)
class Clip:
    """Shrink a worker's gradient so that the mean over workers stays about within ``norm``.

    Gradients here are each worker's own mean, not divided by the number of workers n. The mean of
    n such independent gradients has a norm sqrt(n) times smaller, so the local limit is sqrt(n) *
    norm. (The paper's gradients hold the factor 1 / n already; its limit, norm / sqrt(n), is the
    same thing.)

    ``scope`` is whose norm counts: "model", all tensors together, as in the paper, which needs the
    whole gradient before the first tensor can be sent; or "tensor", each by itself.
    """

    norm: float
    scope: str = "model"

    def __post_init__(self) -> None:
        check_positive(self.norm, owner="Clip", field="norm")
        check_choice(self.scope, ("model", "tensor"), owner="Clip", field="scope")

    def init(self, numel: int) -> State:
        del numel
        return {}

    def before(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        gain = self.gain(x, info)
        return x if gain == 1.0 else x * gain

    def after(self, sent: Tensor, state: State, *, sparse: bool) -> None:
        pass

    def gain(self, x: Tensor, info: StepInfo) -> float:
        """What ``x`` is multiplied by: at most 1."""
        if self.scope == "tensor":
            norm = math.sqrt(_native.sum_squares(x))
        elif info.gradient_norm is None:
            raise ConfigError(
                "Clip(scope='model') needs gradient_norm: use Compressor.compress_all"
            )
        else:
            norm = info.gradient_norm
        return min(1.0, math.sqrt(info.workers) * self.norm / (norm + 1e-6))
