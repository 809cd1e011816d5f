"""CLAN: the LANS optimizer on a compressed exchange."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.training import Trainer, backward, loss_of, network, virtual, weights
from thinwire.codec.base import Codec


def lans(net: nn.Module) -> Optimizer:
    return tw.optim.LANS(net.parameters(), lr=0.01)


def train_lans() -> list[bytes]:
    return Trainer(None, optimizer=lans).train(range(10))


def train_clan(codec: Codec, normalize_grad: bool) -> list[bytes]:
    net = network()
    model = DistributedDataParallel(net, bucket_cap_mb=0.2)
    compression = tw.compress_ddp(model, tw.clan(codec), force=True)
    optimizer = tw.optim.CLAN(
        net.parameters(), lr=0.01, exchange=compression, normalize_grad=normalize_grad
    )
    for step in range(10):
        backward(loss_of(model, step, dist.get_rank()))
        optimizer.step()
        optimizer.zero_grad()
    return weights(net)


@pytest.mark.parametrize("ranks", [1, 2])
def test_E6_clan_with_the_identity_codec_is_lans_bit_for_bit(ranks: int) -> None:
    assert run(train_clan, tw.Float32(), True, ranks=ranks) == run(train_lans, ranks=ranks)


@pytest.mark.parametrize("normalize_grad", [False, True])
@pytest.mark.parametrize("codec", [tw.OneBit(), tw.Dither(4), tw.TopK(0.05)], ids=repr)
def test_ranks_agree_and_are_what_the_virtual_cluster_computes(
    codec: Codec, normalize_grad: bool
) -> None:
    def optimizer(net: nn.Module) -> Optimizer:
        return tw.optim.LANS(net.parameters(), lr=0.01, normalize_grad=normalize_grad)

    found = run(train_clan, codec, normalize_grad, ranks=3)
    assert found == [virtual(tw.clan(codec), 3, 10, optimizer=optimizer)] * 3
