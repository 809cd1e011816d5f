"""The small convolutional network."""

from __future__ import annotations

import torch

from thinwire_lab.models.convolutional import CNN, build_cnn


def test_a_seed_gives_the_same_weights_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    first, second, other = (list(build_cnn(seed=seed).parameters()) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])


def test_it_has_the_size_it_says() -> None:
    net = build_cnn(seed=0)
    assert net(torch.zeros(3, 1, 28, 28)).shape == (3, 10)
    assert f"{sum(x.numel() for x in net.parameters()):,}" in str(CNN.__doc__)
