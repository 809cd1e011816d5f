"""``Residual``: error feedback. What was not sent this step is added to the next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.checks import check_fraction
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, State, stages_of
from thinwire.gradient.steps import StepInfo


@dataclass(frozen=True, slots=True)
class Residual:
    """Keep ``residual += x - sent``, so that over time nothing is lost.

    The law of error feedback: the sum of all inputs equals the sum of everything sent plus the
    residual, up to rounding.

    With ``rescale`` the residual follows the learning rate: when that changes from a to b, the
    residual is multiplied by a / b, and what is conserved is the sum of learning rate times
    gradient. Right for SGD; wrong for optimizers that normalise, such as Adam or LANS.

    ``decay`` is what the residual is multiplied by before each new input is added, and 1 - decay of
    it is forgotten: what was left out many steps ago may be out of date by now. The law is then
    that all inputs are what was sent, what is left and what was forgotten. Of local steps 0.95
    (SparseLoCo, 2025) keeps half of an element for 14 rounds.
    """

    rescale: bool = False
    decay: float = 1.0

    def __post_init__(self) -> None:
        check_fraction(self.decay, owner="Residual", field="decay")

    def init(self, numel: int) -> State:
        state = {"residual": torch.zeros(numel)}
        if self.rescale:
            state["learning_rate"] = torch.zeros((), dtype=torch.float64)
        return state

    def before(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        keep = self.keep(state, info)
        if keep != 1.0:
            state["residual"].mul_(keep)
        return state["residual"].add_(x)

    def after(self, sent: Tensor, state: State, *, sparse: bool) -> None:
        state["residual"].sub_(sent)

    def keep(self, state: State, info: StepInfo) -> float:
        """What the residual is multiplied by this step. Notes the learning rate in ``state``."""
        return self.decay * self._rescaled(state, info)

    def _rescaled(self, state: State, info: StepInfo) -> float:
        """How many of this step's learning rate one of the last is."""
        if not self.rescale:
            return 1.0
        rate = info.learning_rate
        if rate is None:
            raise ConfigError("Residual(rescale=True) needs the learning rate of every step")
        last = float(state["learning_rate"])
        if rate == 0.0:  # nothing moves this step, and no ratio could be undone later
            return 1.0
        state["learning_rate"].fill_(rate)
        return last / rate if last else 1.0


def decay_of(feedback: Feedback) -> float:
    """What ``feedback`` multiplies its residual by at every step; 1 if it forgets nothing."""
    decays = (stage.decay for stage in stages_of(feedback) if isinstance(stage, Residual))
    return next(decays, 1.0)
