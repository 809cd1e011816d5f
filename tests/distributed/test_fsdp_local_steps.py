"""Local steps of sharded networks: FSDP within a replica, rounds between replicas."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.test_checkpoints import through_a_file
from tests.distributed.test_fsdp import Even, Net, meshes
from tests.distributed.training import backward, batch, refused

EVERY = 3
RECIPES = {
    "float32": tw.local_average(tw.Float32()),
    "1 bit": tw.local_average(tw.OneBit(block=64)),
    "outer": tw.diloco(tw.OneBit(block=64)),
    "sparse": tw.sparseloco(),
}


class Rank:
    """One rank's part of a replica."""

    def __init__(self, name: str, *, net: Any = None, replicas: int = 2, **options: Any) -> None:
        mesh = meshes(replicas)
        self.net: Any = Net() if net is None else net
        fully_shard(self.net.blocks, mesh=mesh["shard"])
        fully_shard(self.net, mesh=mesh["shard"])
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-3)
        self.local = tw.local_steps(
            self.net,
            self.optimizer,
            RECIPES[name],
            every=EVERY,
            replicate=mesh["replicate"],
            **options,
        )

    def train(self, steps: range) -> None:
        for step in steps:
            x = batch(step, dist.get_rank())
            self.optimizer.zero_grad()
            backward(nn.functional.cross_entropy(self.net(x), (x[:, 0] > 0).long()))
            self.optimizer.step()

    def weights(self) -> list[bytes]:
        """Of the whole network."""
        parameters: list[Any] = list(self.net.parameters())
        return [p.full_tensor().detach().numpy().tobytes() for p in parameters]


def train(name: str, options: dict[str, Any]) -> tuple[list[bytes], list[bytes]]:
    """Between rounds, and at the end."""
    rank = Rank(name, **options)
    rank.train(range(2 * EVERY + 1))
    between = rank.weights()
    rank.local.synchronize()
    return between, rank.weights()


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "overlapped": {"delay": 1, "fragments": 2},
    "allgather": {"exchange": "allgather"},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", RECIPES)
def test_S1_replicas_are_equal_after_a_round(name: str, options: str) -> None:
    found = run(train, name, OPTIONS[options], ranks=4)
    assert all(end == found[0][1] for _, end in found)
    assert found[0][0] == found[1][0] != found[2][0] == found[3][0]


def train_even(name: str) -> list[bytes]:
    rank = Rank(name, net=Even())
    rank.train(range(4 * EVERY))
    return rank.weights()


@pytest.mark.parametrize("name", ["float32", "1 bit", "outer"])
def test_S1_parts_are_what_whole_replicas_compute(name: str) -> None:
    net = Even()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    cluster = tw.VirtualCluster(net, optimizer, RECIPES[name], workers=2, local_steps=EVERY)

    def loss_of(step: int, worker: int) -> Tensor:
        batches = [batch(step, 2 * worker + part) for part in range(2)]
        losses = [nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long()) for x in batches]
        return (losses[0] + losses[1]) / 2

    for step in range(4 * EVERY):
        cluster.step(lambda worker, step=step: loss_of(step, worker))  # type: ignore[misc]
    found = run(train_even, name, ranks=4)
    assert found[0] == [p.detach().numpy().tobytes() for p in net.parameters()]


def evaluate() -> tuple[list[bytes], list[bytes], list[bytes]]:
    rank = Rank("1 bit")
    rank.train(range(EVERY))
    agreed = rank.weights()
    rank.train(range(EVERY, EVERY + 2))
    own = rank.weights()
    with rank.local.global_weights():
        lent = rank.weights()
    assert rank.weights() == own
    return agreed, own, lent


def test_the_global_weights_are_those_of_the_last_round() -> None:
    for agreed, own, lent in run(evaluate, ranks=4):
        assert agreed == lent != own


def resume(name: str, at: int) -> bool:
    whole, first, second = (Rank(name) for _ in range(3))
    first.train(range(at))
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.local.load_state_dict(through_a_file(first.local.state_dict()))
    whole.train(range(8))
    second.train(range(at, 8))
    return whole.weights() == second.weights()


@pytest.mark.parametrize("name", ["1 bit", "outer"])
def test_S2_resuming_within_a_round_is_bit_identical(name: str) -> None:
    assert run(resume, name, EVERY + 1, ranks=4) == [True] * 4


def save_ranks(folder: str, replicas: int) -> list[bytes]:
    rank = Rank("outer", replicas=replicas)
    rank.train(range(2 * EVERY))
    save({"local": rank.local}, checkpoint_id=folder)
    return rank.weights()


def load_ranks(folder: str, replicas: int) -> list[bytes]:
    rank = Rank("outer", replicas=replicas)
    rank.local.load_distributed(folder, key="local")
    found = rank.weights()
    rank.train(range(2 * EVERY, 3 * EVERY))
    return found


@pytest.mark.parametrize("after", [(4, 2), (4, 4), (3, 1), (2, 2), (4, 1)])
def test_S8_weights_go_to_other_numbers_of_replicas_and_parts(
    after: tuple[int, int], tmp_path: Path
) -> None:
    """Numbers of ranks, and of replicas."""
    saved = run(save_ranks, str(tmp_path), 2, ranks=4)
    for loaded in run(load_ranks, str(tmp_path), after[1], ranks=after[0]):
        assert loaded == saved[0]


def without_replicate() -> str:
    mesh = meshes()
    net = Even()
    fully_shard(net, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(net.parameters())
    return refused(lambda: tw.local_steps(net, optimizer))


def test_a_sharded_network_needs_replicate() -> None:
    assert all("is sharded" in text for text in run(without_replicate, ranks=4))
