"""Laws of conservation, each under a number of its own, on real frames."""

# ruff: noqa: N802 - a test begins with the number of its law, as the law is written

from __future__ import annotations

import math

import pytest
import torch

import thinwire as tw
from tests.cases import CODECS
from tests.cluster import Cluster, carried, random_gradients
from thinwire.codec.base import Codec

D, STEPS = 500, 60


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_I1_what_was_sent_and_what_is_left_is_what_was_given(codec: Codec) -> None:
    compressor = tw.Compressor(codec, tw.Residual())
    given = sent = torch.zeros(D, dtype=torch.float64)
    most = 1.0  # what feedback around a coarse unbiased codec reaches; rounding is relative to it
    for step, (gradient,) in enumerate(random_gradients(STEPS, 1, (D,))):
        message = compressor.compress("w", gradient, step=step).decode()
        given, sent = given + gradient, sent + message
        most = max(most, float(message.abs().max()))
    left = compressor.state_dict()["w"]["residual"]
    torch.testing.assert_close(sent + left, given, rtol=1e-5, atol=1e-5 * most)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_I1_what_a_decay_forgets_is_counted(codec: Codec, fuse: bool) -> None:
    decay = 0.75
    compressor = tw.Compressor(codec, tw.Residual(decay=decay), fuse=fuse)
    left = given = sent = forgotten = torch.zeros(D, dtype=torch.float64)
    given_squares = forgotten_squares = 0.0
    most = 1.0
    for step, (gradient,) in enumerate(random_gradients(STEPS, 1, (D,))):
        message = compressor.compress("w", gradient, step=step).decode()
        given, sent, forgotten = given + gradient, sent + message, forgotten + (1 - decay) * left
        given_squares += float(gradient.double().square().sum())
        forgotten_squares += float(((1 - decay) * left).square().sum())
        left = compressor.state_dict()["w"]["residual"].double()
        most = max(most, float(message.abs().max()))
    torch.testing.assert_close(sent + left + forgotten, given, rtol=1e-5, atol=1e-5 * most)
    expected = math.sqrt(forgotten_squares / given_squares)
    assert compressor.forgotten_ratio == pytest.approx(expected, rel=1e-5)


def test_I1_without_decay_nothing_is_forgotten() -> None:
    compressor = tw.Compressor(tw.TopK(0.1), tw.Residual())
    compressor.compress("w", random_gradients(1, 1, (D,))[0][0], step=0)
    assert compressor.forgotten_ratio is None


@pytest.mark.parametrize("codec", [tw.OneBit(), tw.TopK(0.05), tw.RandomK(0.2)], ids=repr)
def test_I1_two_ways_with_omega(codec: Codec) -> None:
    """sum c = sum mean g - Omega: what the server owes and the mean of what the workers owe."""
    cluster = Cluster(tw.doublesqueeze(codec), (D,), workers=4)
    given = received = torch.zeros(D, dtype=torch.float64)
    for step, gradients in enumerate(random_gradients(STEPS, 4, (D,))):
        given = given + torch.stack(gradients).double().mean(0)
        received = received + cluster.exchange(gradients, step=step)
    omega = cluster.server.state_dict()["w"]["residual"] + cluster.mean_residual()
    torch.testing.assert_close(received + omega, given, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
def test_I2_what_dgc_accumulates_is_sent_or_left(nesterov: bool, mask: bool) -> None:
    momentum = 0.9
    feedback = tw.chain(tw.Momentum(momentum, nesterov, mask), tw.Residual())
    compressor = tw.Compressor(tw.TopK(0.02), feedback)
    u = torch.zeros(D, dtype=torch.float64)
    put_in, sent = torch.zeros_like(u), torch.zeros_like(u)
    for step, (gradient,) in enumerate(random_gradients(STEPS, 1, (D,))):
        u = momentum * (u + gradient) if nesterov else momentum * u + gradient
        put_in += u + gradient if nesterov else u
        message = compressor.compress("w", gradient, step=step).decode()
        sent += message
        if mask:
            u[message != 0] = 0.0
    left = compressor.state_dict()["w"]["residual"]
    torch.testing.assert_close(sent + left, put_in, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("nesterov", [True, False])
def test_I3_flushing_the_residual_gives_dense_momentum_sgd(nesterov: bool) -> None:
    lr, shape = 0.05, (20, 25)
    feedback = tw.chain(tw.Momentum(0.9, nesterov, mask=False), tw.Residual())
    cluster = Cluster(tw.Recipe(tw.TopK(0.02), feedback), shape, workers=4)
    sparse, dense = torch.nn.Parameter(torch.ones(shape)), torch.nn.Parameter(torch.ones(shape))
    ours = tw.optim.SGD([sparse], lr=lr)
    theirs = torch.optim.SGD([dense], lr=lr, momentum=0.9, nesterov=nesterov)
    for step, gradients in enumerate(random_gradients(STEPS, 4, shape)):
        sparse.grad = cluster.exchange(gradients, step=step)
        dense.grad = torch.stack(gradients).mean(0)
        ours.step()
        theirs.step()
    assert not torch.allclose(sparse, dense, atol=1e-2)  # there is something to flush
    flushed = sparse.detach() - lr * cluster.mean_residual()
    torch.testing.assert_close(flushed, dense.detach(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_I6_the_residual_is_what_the_receiver_does_not_decode(codec: Codec) -> None:
    """In one step from nothing: gradient = decoded + residual, with the bytes that travelled."""
    gradient = random_gradients(1, 1, (D,))[0][0]
    compressor = tw.Compressor(codec, tw.Residual())
    received = carried(compressor.compress("w", gradient, step=0)).decode()
    assert torch.equal(compressor.state_dict()["w"]["residual"], gradient - received)
