"""``Feedback``: a stage that keeps what a codec could not send, or does other work on a gradient.

A stage is a frozen dataclass of settings. Its buffers live in a plain dict that the Compressor
owns, one per tensor, so a checkpoint is just those dicts.

For each gradient the Compressor calls ``before``, encodes what comes back, decodes it again to
learn what the receiver will see, and calls ``after`` with that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.gradient.steps import StepInfo

State = dict[str, Tensor]

LARGEST = 2.0**100
"""Gradients with a larger norm are treated as overflowed: millions of them still add up to
something finite, so that no peer can spoil a residual."""


def is_usable(square: float) -> bool:
    """Whether feedback may see values with this sum of squares: finite, and far from overflow."""
    return square <= LARGEST**2  # false for a nan


@runtime_checkable
class Feedback(Protocol):
    """All that a stage must provide. ``thinwire.testing.check_feedback`` checks it."""

    def init(self, numel: int) -> State:
        """Return fresh buffers for a tensor of ``numel`` elements."""

    def before(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        """Return what we want to send. The caller reads it and must not change it."""

    def after(self, sent: Tensor, state: State, *, sparse: bool) -> None:
        """Learn what was really sent. If ``sparse``, its zeros were left out, not sent.

        ``sent`` is memory that the caller uses again.
        """


def check_feedback(value: object, *, owner: str) -> None:
    """Refuse what is no feedback: a class without its parentheses, say."""
    if isinstance(value, type) or not isinstance(value, Feedback):
        raise ConfigError(f"{owner}: expected a feedback such as Residual(), got {value!r}")


@dataclass(frozen=True, slots=True)
class NoFeedback:
    """Send it and forget it: for codecs that lose nothing, or nothing on average."""

    def init(self, numel: int) -> State:
        del numel
        return {}

    def before(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        return x

    def after(self, sent: Tensor, state: State, *, sparse: bool) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Chain:
    """Stages in order: ``before`` runs left to right, ``after`` right to left.

    Stages share one dict, so each may be there once.
    """

    stages: tuple[Feedback, ...]

    def __post_init__(self) -> None:
        for stage in self.stages:
            check_feedback(stage, owner="chain")
        keys = [key for stage in self.stages for key in stage.init(0)]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise ConfigError(f"chain: two stages both keep {', '.join(sorted(twice))}")

    def init(self, numel: int) -> State:
        return {key: buffer for stage in self.stages for key, buffer in stage.init(numel).items()}

    def before(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        for stage in self.stages:
            x = stage.before(x, state, info)
        return x

    def after(self, sent: Tensor, state: State, *, sparse: bool) -> None:
        for stage in reversed(self.stages):
            stage.after(sent, state, sparse=sparse)


def chain(*stages: Feedback) -> Chain:
    """``chain(Clip(1.0), Momentum(0.9), Residual())`` is Deep Gradient Compression."""
    return Chain(stages)


def stages_of(feedback: Feedback) -> tuple[Feedback, ...]:
    """The stages of a chain; of anything else, itself."""
    return feedback.stages if isinstance(feedback, Chain) else (feedback,)
