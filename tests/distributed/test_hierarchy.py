"""Dense within a host, compressed between hosts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import thinwire as tw
from tests.distributed.handles import handle, load_distributed, owed, save_distributed
from tests.distributed.launch import run
from tests.distributed.training import (
    RECIPES,
    Trainer,
    exchange_state,
    floats,
    loss_of,
    network,
    plain_sgd,
    train,
    weights,
)

HOST = {"LOCAL_WORLD_SIZE": "2"}


def train_by_host(name: str, exchange: str) -> tuple[list[bytes], list[str]]:
    recipe = tw.dense() if name == "dense" else RECIPES[name]
    trainer = Trainer(recipe, hierarchy="host", exchange=exchange)
    found = trainer.train(range(8))
    return found, sorted(exchange_state(trainer.compression))


def virtual_hosts(name: str) -> list[bytes]:
    """Two workers, each with the mean gradient of two ranks."""
    net = network()
    cluster = tw.VirtualCluster(net, plain_sgd(net), RECIPES[name], workers=2)

    def host_loss(step: int, host: int) -> Tensor:
        return (loss_of(net, step, 2 * host) + loss_of(net, step, 2 * host + 1)) / 2

    for step in range(8):
        cluster.step(partial(host_loss, step))
    return weights(net)


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
@pytest.mark.parametrize("name", ["1 bit", "dgc"])
def test_ranks_agree_and_only_leaders_keep_state(name: str, exchange: str) -> None:
    found = run(train_by_host, name, exchange, ranks=4, env=HOST)
    assert all(one == found[0][0] for one, _ in found)
    assert [keys for _, keys in found] == [["pull", "push"], []] * 2


def test_it_is_what_as_many_workers_as_hosts_would_do() -> None:
    """Not bit for bit: here the mean of a host is one of sums, there the gradient of one."""
    found, _ = run(train_by_host, "dgc", "sharded", ranks=4, env=HOST)[0]
    for a, b in zip(found, virtual_hosts("dgc"), strict=True):
        difference = float((floats(a) - floats(b)).norm())
        assert difference < 1e-2 * float((floats(b) - floats(b).mean()).norm())


def train_plain() -> list[bytes]:
    return train(None, 8)


def test_identity_codec_is_plain_ddp_but_for_the_order_of_sums() -> None:
    plain = run(train_plain, ranks=4)[0]
    ours, _ = run(train_by_host, "dense", "sharded", ranks=4, env=HOST)[0]
    for a, b in zip(plain, ours, strict=True):
        torch.testing.assert_close(floats(a), floats(b), rtol=1e-5, atol=1e-6)


def test_one_host_needs_no_exchange() -> None:
    plain = run(train_plain, ranks=2)[0]
    assert run(train_by_host, "dense", "sharded", ranks=2, env=HOST)[0][0] == plain


def resume_by_host() -> bool:
    whole, first, second = (Trainer(RECIPES["dgc"], hierarchy="host") for _ in range(3))
    first.train(range(3))
    second.net.load_state_dict(first.net.state_dict())
    handle(second).load_state_dict(handle(first).state_dict())
    return whole.train(range(6)) == second.train(range(3, 6))


def test_resuming_is_bit_identical() -> None:
    assert all(run(resume_by_host, ranks=4, env=HOST))


def test_hosts_may_be_told_apart_or_not_after_a_checkpoint(tmp_path: Path) -> None:
    options: dict[str, Any] = {"hierarchy": "host"}
    old = run(save_distributed, "dgc", str(tmp_path), options, ranks=4, env=HOST)
    new = run(load_distributed, "dgc", str(tmp_path), {}, ranks=3)
    was, now = owed(old, "2.weight", "residual"), owed(new, "2.weight", "residual")
    torch.testing.assert_close(now, was, rtol=1e-6, atol=1e-8)


def uneven_hosts() -> str:
    group = dist.new_group([0, 1, 2])
    if dist.get_rank() == 3:
        return "not in it"
    model = nn.parallel.DistributedDataParallel(network(), process_group=group)
    try:
        tw.compress_ddp(model, RECIPES["1 bit"], hierarchy="host")
    except tw.ConfigError as error:
        return str(error)
    return "no error"


def test_hosts_of_different_sizes_are_refused() -> None:
    assert "[2, 1]" in run(uneven_hosts, ranks=4, env=HOST)[0]
