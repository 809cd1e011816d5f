"""``Stages``: the parts of a feedback that native passes know, by name."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from thinwire.compressor.state import Change
from thinwire.feedback.base import Feedback, stages_of
from thinwire.feedback.clip import Clip
from thinwire.feedback.momentum import Momentum, SharedMomentum
from thinwire.feedback.residual import Residual
from thinwire.gradient.steps import StepInfo


@dataclass(frozen=True, slots=True)
class Stages:
    """A feedback that is a Residual, after an optional momentum, after an optional Clip."""

    residual: Residual
    momentum: Momentum | None = None
    clip: Clip | None = None
    shared: SharedMomentum | None = None

    @classmethod
    def of(cls, feedback: Feedback) -> Stages | None:
        match stages_of(feedback):
            case (Residual() as residual,):
                return cls(residual)
            case (Momentum() as momentum, Residual() as residual):
                return cls(residual, momentum)
            case (SharedMomentum() as shared, Residual() as residual):
                return cls(residual, shared=shared)
            case (Clip() as clip, Residual() as residual):
                return cls(residual, clip=clip)
            case (Clip() as clip, Momentum() as momentum, Residual() as residual):
                return cls(residual, momentum, clip)
            case (Clip() as clip, SharedMomentum() as shared, Residual() as residual):
                return cls(residual, clip=clip, shared=shared)
        return None

    def gain(self, gradient: Tensor, info: StepInfo) -> float:
        return 1.0 if self.clip is None else self.clip.gain(gradient, info)

    def keep(self, change: Change) -> float:
        return self.residual.keep(change.after.buffers, change.info)

    def given(
        self, gradient: Tensor, change: Change, *, clear: bool, gain: float
    ) -> tuple[Tensor, float]:
        """What a native step takes for the gradient, with its gain: the shared momentum, if there
        is one, is in it then. With ``clear`` the gradient that it was is zeros."""
        if self.shared is None or change.info.carried is None:
            return gradient, gain
        added = self.shared.before(gradient * gain, {}, change.info)
        if clear:
            gradient.zero_()
        return added, 1.0
