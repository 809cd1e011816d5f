"""I1, I2, I5, I6: whatever the codec, what goes into a residual is what was sent plus what is left
and what a decay forgot.

Measured on payloads as receivers decode them, with every codec, chain and path.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import thinwire as tw
from tests.cases import CODECS, RESIDUAL_CHAINS, gradients, laws
from thinwire.codec.base import Codec
from thinwire.feedback.base import Chain, Feedback
from thinwire.gradient.steps import StepInfo


class Ledger:
    """What went in, was sent, is left or forgotten, each times the learning rate of its step."""

    def __init__(self, codec: Codec, feedback: Feedback, numel: int, *, fuse: bool) -> None:
        stages = feedback.stages if isinstance(feedback, Chain) else (feedback,)
        self._before_residual = Chain(stages[:-1])
        residual = stages[-1]
        assert isinstance(residual, tw.Residual)
        self._residual = residual
        self._state = self._before_residual.init(numel)
        self._compressor = tw.Compressor(codec, feedback, workers=2, fuse=fuse)
        self._compressor.prepare([tw.Piece.whole(tw.Key("w", (numel,)))])
        self._sparse = codec.sparse
        self._rate = 1.0
        self.put_in = torch.zeros(numel, dtype=torch.float64)
        self.sent = torch.zeros(numel, dtype=torch.float64)
        self.forgotten = torch.zeros(numel, dtype=torch.float64)
        self.moved = torch.zeros(numel, dtype=torch.float64)

    def step(self, gradient: Tensor, *, step: int, rate: float) -> None:
        norm = float(gradient.double().norm())
        info = StepInfo(step, workers=2, gradient_norm=norm, learning_rate=rate)
        increment = self._before_residual.before(gradient, self._state, info).double()
        self.forgotten += (1 - self._residual.decay) * self.left()
        encoded = self._compressor.compress(
            "w", gradient, step=step, gradient_norm=norm, learning_rate=rate
        )
        sent = encoded.decode()
        self._before_residual.after(sent, self._state, sparse=self._sparse)
        self._rate = rate if self._residual.rescale else 1.0
        self.put_in += self._rate * increment
        self.sent += self._rate * sent.double()
        self.moved += self._rate * (increment.abs() + sent.double().abs())

    def left(self) -> Tensor:
        return self._rate * self._compressor.state_dict()["w"]["residual"].double()

    def check(self) -> None:
        missing = (self.put_in - self.sent - self.left() - self.forgotten).abs()
        bound = 1e-5 * (self.moved + self.left().abs()) + 1e-43
        assert bool((missing <= bound).all())


@pytest.mark.parametrize("feedback", RESIDUAL_CHAINS, ids=repr)
@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "plain"])
@laws
@given(codec=st.sampled_from(CODECS), data=st.data())
def test_nothing_is_lost(feedback: Feedback, fuse: bool, codec: Codec, data: st.DataObject) -> None:
    numel = data.draw(st.integers(1, 400))
    ledger = Ledger(codec, feedback, numel, fuse=fuse)
    rates = st.sampled_from([0.1, 0.05, 0.2])
    for step, gradient in enumerate(data.draw(gradients(numel, 8))):
        ledger.step(gradient, step=step, rate=data.draw(rates))
    ledger.check()


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "plain"])
def test_nothing_is_lost_by_any_codec(codec: Codec, fuse: bool) -> None:
    chance = torch.Generator().manual_seed(1)
    ledger = Ledger(codec, tw.Residual(), 500, fuse=fuse)
    for step in range(50):
        ledger.step(torch.randn(500, generator=chance), step=step, rate=0.1)
    ledger.check()
