"""Deep Gradient Compression is the paper's, bit for bit: its steps by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

import thinwire as tw
from tests.cases import gradients, laws
from tests.reference.dgc import Dgc, clipped
from thinwire.feedback.base import Chain


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
@laws
@given(data=st.data(), numel=st.integers(1, 200), threshold=st.sampled_from([None, 0.5, 50.0]))
def test_every_step_is_the_papers(
    nesterov: bool,
    mask: bool,
    fuse: bool,
    data: st.DataObject,
    numel: int,
    threshold: float | None,
) -> None:
    ratio, workers = data.draw(st.sampled_from([0.01, 0.1, 0.5])), 4
    stages: Chain = tw.chain(tw.Momentum(0.9, nesterov, mask), tw.Residual())
    if threshold is not None:
        stages = tw.chain(tw.Clip(threshold), *stages.stages)
    ours = tw.Compressor(tw.TopK(ratio), stages, workers=workers, fuse=fuse)
    papers = Dgc(numel, math.ceil(ratio * numel), 0.9, nesterov, mask)
    for step, gradient in enumerate(data.draw(gradients(numel, 5))):
        g = gradient.numpy()
        if threshold is not None:
            norm = math.sqrt(math.fsum(float(v) ** 2 for v in g))
            g = clipped(g, norm=norm, threshold=threshold, workers=workers)
        sent = ours.compress_all({"w": gradient}, step=step)["w"].decode().numpy()
        np.testing.assert_array_equal(sent, papers.step(g))
        state = ours.state_dict()["w"]
        np.testing.assert_array_equal(state["velocity"].numpy(), papers.u)
        np.testing.assert_array_equal(state["residual"].numpy(), papers.v)
