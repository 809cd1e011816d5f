"""DistributedDataParallel with compressed gradients, in real processes."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from tests.distributed.launch import run
from thinwire.recipe import Recipe


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 5))


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 20, generator=generator)
    return nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())


def weights(net: nn.Module) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in net.parameters()]


@dataclass(frozen=True, slots=True)
class Modes:
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    static_graph: bool = False


def train(recipe: Recipe | None, steps: int, modes: Modes) -> list[bytes]:
    """Weights after DDP training; with several buckets, so that they are re-formed."""
    net = network()
    model = DistributedDataParallel(
        net,
        bucket_cap_mb=0.2,
        gradient_as_bucket_view=modes.gradient_as_bucket_view,
        find_unused_parameters=modes.find_unused_parameters,
        static_graph=modes.static_graph,
    )
    optimizer = tw.optim.SGD(net.parameters(), lr=0.05)
    compression = None if recipe is None else tw.compress_ddp(model, recipe, optimizer=optimizer)
    for step in range(steps):
        backward(loss_of(model, step, dist.get_rank()))
        optimizer.step()
        optimizer.zero_grad()
    if compression is not None:
        assert compression.steps == steps
        compression.close()
    return weights(net)


def train_by_allgather() -> list[bytes]:
    net = network()
    model = DistributedDataParallel(net)
    optimizer = tw.optim.SGD(net.parameters(), lr=0.05)
    tw.compress_ddp(model, tw.dgc(0.02), exchange="allgather", optimizer=optimizer)
    for step in range(8):
        backward(loss_of(model, step, dist.get_rank()))
        optimizer.step()
        optimizer.zero_grad()
    return weights(net)


@pytest.mark.parametrize("ranks", [2, 3])
def test_S1_allgather_is_what_a_lossless_answer_gives(ranks: int) -> None:
    found = run(train_by_allgather, ranks=ranks)
    assert all(one == found[0] for one in found)
    assert found[0] == virtual(tw.dgc(0.02), ranks, 8)


def virtual(recipe: Recipe, workers: int, steps: int) -> list[bytes]:
    net = network()
    optimizer = tw.optim.SGD(net.parameters(), lr=0.05)
    cluster = tw.VirtualCluster(net, optimizer, recipe, workers=workers)
    for step in range(steps):
        cluster.step(partial(loss_of, net, step))
    return weights(net)


MODES = [
    Modes(),
    Modes(gradient_as_bucket_view=True),
    Modes(find_unused_parameters=True),
    Modes(static_graph=True),
]


@pytest.mark.parametrize("modes", MODES, ids=str)
def test_identity_codec_is_plain_ddp_bit_for_bit_with_two_ranks(modes: Modes) -> None:
    plain = run(train, None, 50, modes, ranks=2)
    assert run(train, tw.dense(), 50, modes, ranks=2) == plain


RECIPES = {
    "1 bit": tw.doublesqueeze(tw.OneBit()),
    "top-k": tw.doublesqueeze(tw.TopK(0.02, values="float16")),
    "dgc": tw.dgc(0.02, momentum=0.9),
    "dither": tw.clan(tw.Dither(4)),
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_S1_ranks_agree_and_are_what_the_virtual_cluster_computes(name: str, ranks: int) -> None:
    found = run(train, RECIPES[name], 8, Modes(), ranks=ranks)
    assert all(one == found[0] for one in found)
    assert found[0] == virtual(RECIPES[name], ranks, 8)


def train_with_a_rank_that_stops() -> str:
    net = network()
    model = DistributedDataParallel(net)
    tw.compress_ddp(model, tw.doublesqueeze(tw.OneBit()), deadline_seconds=20.0)
    for step in range(2):  # DDP itself talks to all ranks before the second
        backward(loss_of(model, step, dist.get_rank()))
    if dist.get_rank() == 1:
        return "stopped"
    try:
        backward(loss_of(model, 2, dist.get_rank()))
    except tw.WorkerLost as error:
        return str(error)
    return "no error"


def test_a_rank_that_is_gone_is_named_within_the_deadline() -> None:
    error, stopped = run(train_with_a_rank_that_stops, ranks=2, deadline_seconds=60, keep=False)
    assert stopped == "stopped"
    assert "rank 1" in error
    assert "step 2" in error
    assert "2.weight" in error


def resume() -> bool:
    recipe = RECIPES["dgc"]
    net = network()
    model = DistributedDataParallel(net)
    optimizer = tw.optim.SGD(net.parameters(), lr=0.05)
    compression = tw.compress_ddp(model, recipe, optimizer=optimizer)
    for step in range(4):
        backward(loss_of(model, step, dist.get_rank()))
        optimizer.step()
        optimizer.zero_grad()
    again = network()
    again.load_state_dict(net.state_dict())
    second = DistributedDataParallel(again)
    second_optimizer = tw.optim.SGD(again.parameters(), lr=0.05)
    resumed = tw.compress_ddp(second, recipe, optimizer=second_optimizer)
    resumed.load_state_dict(compression.state_dict())
    for step in range(4, 8):
        for m, o in ((model, optimizer), (second, second_optimizer)):
            backward(loss_of(m, step, dist.get_rank()))
            o.step()
            o.zero_grad()
    return weights(net) == weights(again)


def test_S2_resuming_from_a_state_is_bit_identical() -> None:
    assert run(resume, ranks=2) == [True, True]


def accumulate(split: bool) -> list[bytes]:
    net = network()
    model = DistributedDataParallel(net)
    optimizer = tw.optim.SGD(net.parameters(), lr=0.05)
    compression = tw.compress_ddp(model, RECIPES["1 bit"], optimizer=optimizer)
    rank = dist.get_rank()
    for step in range(3):
        if split:
            with model.no_sync():
                backward(loss_of(model, step, rank) / 2)
            backward(loss_of(model, step + 100, rank) / 2)
        else:
            backward((loss_of(model, step, rank) + loss_of(model, step + 100, rank)) / 2)
        optimizer.step()
        optimizer.zero_grad()
    assert compression.steps == 3
    return weights(net)


def test_S3_two_micro_batches_are_one_batch() -> None:
    whole, parts = run(accumulate, False, ranks=2)[0], run(accumulate, True, ranks=2)[0]
    for a, b in zip(whole, parts, strict=True):
        x, y = (torch.frombuffer(bytearray(data), dtype=torch.float32) for data in (a, b))
        # Signs of sums that are nearly zero may differ by the order of additions.
        assert float((x - y).abs().mean()) < 1e-4
