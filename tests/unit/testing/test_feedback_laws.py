"""The laws of feedback can be broken: one feedback for each way, and check_feedback finds it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import thinwire as tw
from thinwire.feedback.base import Feedback, State
from thinwire.gradient.steps import StepInfo
from thinwire.testing import check_feedback


@dataclass(frozen=True)
class Broken:
    """A residual that can go wrong in several ways."""

    crime: str = ""

    def init(self, numel: int) -> State:
        start = torch.ones(numel) if self.crime == "starts at one" else torch.zeros(numel)
        return {"residual": start.half() if self.crime == "is coarse" else start}

    def before(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        if self.crime == "changes the gradient":
            x.mul_(0.5)
        return state["residual"].add_(x)

    def after(self, sent: Tensor, state: State, *, sparse: bool) -> None:
        if self.crime == "changes what was sent":
            sent.add_(1)
        state["residual"].sub_(0.99 * sent if self.crime == "loses" else sent)


CRIMES = {
    "starts at one": "does not begin at zero",
    "is coarse": "too coarse",
    "changes the gradient": "before changed the gradient",
    "changes what was sent": "after changed what was sent",
    "loses": "neither sent nor kept",
}


def test_a_lawful_feedback_passes() -> None:
    check_feedback(Broken())


@pytest.mark.parametrize(("crime", "sentence"), CRIMES.items())
def test_a_broken_feedback_is_found(crime: str, sentence: str) -> None:
    feedback: Feedback = Broken(crime)
    with pytest.raises(AssertionError, match=sentence):
        check_feedback(feedback)


def test_a_feedback_with_memory_of_its_own_is_found() -> None:
    @dataclass(frozen=True)
    class Counts:
        calls: list[int] = field(default_factory=list, compare=False)

        def init(self, numel: int) -> State:
            return {}

        def before(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
            self.calls.append(1)
            return x * len(self.calls)

        def after(self, sent: Tensor, state: State, *, sparse: bool) -> None:
            pass

    with pytest.raises(AssertionError, match="a copy of the state continues differently"):
        check_feedback(Counts())


def test_ours_pass() -> None:
    check_feedback(tw.chain(tw.Clip(1.0), tw.Momentum(), tw.Residual()))
