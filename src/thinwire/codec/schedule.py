"""``Warmup``: a codec that keeps more at the beginning of training."""

from __future__ import annotations

from dataclasses import dataclass, replace

from thinwire.checks import check_ratio, check_whole
from thinwire.codec.base import Codec
from thinwire.codec.randomk import RandomK
from thinwire.codec.topk import TopK
from thinwire.errors import ConfigError
from thinwire.gradient.pieces import Key

WARMUP_RATIOS = (0.25, 0.0625, 0.015625, 0.00390625)
"""Deep Gradient Compression, section 3.3: a quarter, then a quarter of that, and so on."""


@dataclass(frozen=True, slots=True)
class Warmup:
    codec: TopK | RandomK
    steps: int
    ratios: tuple[float, ...] = WARMUP_RATIOS

    def __post_init__(self) -> None:
        if not hasattr(self.codec, "ratio"):
            raise ConfigError(f"warmup: {self.codec} has no ratio that could be higher at first")
        check_whole(self.steps, least=0, owner="warmup", field="steps")
        if not self.ratios:
            raise ConfigError("warmup: ratios must not be empty")
        for ratio in self.ratios:
            check_ratio(ratio, owner="warmup")

    def choose(self, key: Key, *, step: int, workers: int) -> Codec:
        if step >= self.steps:
            return self.codec
        ratio = self.ratios[step * len(self.ratios) // self.steps]
        return replace(self.codec, ratio=max(ratio, self.codec.ratio))


def warmup(
    codec: TopK | RandomK, *, steps: int, ratios: tuple[float, ...] = WARMUP_RATIOS
) -> Warmup:
    """Keep more at first, then the codec as it is.

    Each of ``ratios`` is kept for an equal share of ``steps``, but never less than the codec's own.
    """
    return Warmup(codec, steps, ratios)
