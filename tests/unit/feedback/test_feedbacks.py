"""Every feedback, and every chain with a residual, keeps every law."""

from __future__ import annotations

import pytest

import thinwire as tw
from tests.cases import RESIDUAL_CHAINS
from thinwire.feedback.base import Feedback
from thinwire.testing import check_feedback


@pytest.mark.parametrize("feedback", [tw.NoFeedback(), tw.Momentum(), *RESIDUAL_CHAINS], ids=repr)
def test_every_feedback_keeps_the_laws(feedback: Feedback) -> None:
    check_feedback(feedback)
