"""Networks of which each rank holds only a part are refused: their gradients are not alike."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.training import RECIPES, network, refused
from thinwire.gradient.network import check_gradients

ONE_BIT = RECIPES["1 bit"]


def fsdp() -> nn.Module:
    return FullyShardedDataParallel(network(), device_id=torch.device("cpu"))


def fsdp_within() -> nn.Module:
    """With the parameters' own names, which look like those of the whole network."""
    inner = FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=True)
    return nn.Sequential(inner, nn.Linear(5, 5))


def fsdp2() -> nn.Module:
    net = network()
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return net


def tensor_parallel() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(network(), mesh, {"0": ColwiseParallel()})


def inside_fsdp() -> nn.Module:
    """The network that FSDP wraps and has taken the parameters from."""
    net = network()
    _kept.append(FullyShardedDataParallel(net, device_id=torch.device("cpu")))
    return net


_kept: list[nn.Module] = []

SHARDED = [fsdp, fsdp_within, inside_fsdp, fsdp2, tensor_parallel]


def attempts_with(make: Callable[[], nn.Module]) -> list[str]:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    client = tw.Client(["tcp://127.0.0.1:1"], ONE_BIT, rank=0, workers=1, deadline_seconds=1.0)
    calls: list[Callable[[], object]] = [
        lambda: tw.compress_module(net, ONE_BIT),
        lambda: client.attach(net, optimizer),
        lambda: tw.VirtualCluster(net, optimizer, ONE_BIT, workers=2),
    ]
    return [refused(call) for call in calls]


@pytest.mark.parametrize("make", SHARDED, ids=lambda make: make.__name__)
def test_a_network_of_which_ranks_hold_parts_is_refused(make: Callable[[], nn.Module]) -> None:
    for texts in run(attempts_with, make, ranks=2, keep=False):
        for text in texts:
            assert "each rank holds only a part" in text
            assert "compress_fsdp" in text


def weights_after_refusal() -> tuple[bool, str]:
    """Whether this rank's part is as it was."""
    net = fsdp()
    before = [p.detach().clone() for p in net.parameters()]
    text = refused(lambda: tw.compress_module(net, ONE_BIT))
    same = all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    return same, text


def test_the_parts_of_a_refused_network_are_left_alone() -> None:
    for same, text in run(weights_after_refusal, ranks=2, keep=False):
        assert same, text


def ddp_around_tensor_parallel() -> str:
    """DDP has the network already when it is parallelized."""
    model = DistributedDataParallel(network())
    model.module = tensor_parallel()
    return refused(lambda: tw.compress_ddp(model, ONE_BIT))


def test_compress_ddp_refuses_parts_too() -> None:
    for text in run(ddp_around_tensor_parallel, ranks=2, keep=False):
        assert "each rank holds only a part" in text


def test_torch_2_4_has_its_dtensor_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """There torch.distributed.tensor is loaded with tensor parallelism, but has no DTensor."""
    whole, part = nn.Linear(2, 2), nn.Linear(2, 2)
    elsewhere = ModuleType("torch.distributed._tensor")
    elsewhere.DTensor = type(part.weight)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", ModuleType("of torch 2.4"))
    monkeypatch.delitem(sys.modules, "torch.distributed._tensor", raising=False)
    check_gradients(whole)
    monkeypatch.setitem(sys.modules, "torch.distributed._tensor", elsewhere)
    with pytest.raises(tw.ConfigError, match="weight is sharded"):
        check_gradients(part)


def test_looking_for_parts_does_not_import_what_makes_them() -> None:
    program = (
        "import sys, torch, thinwire\n"
        "from thinwire.gradient.network import check_gradients\n"
        "check_gradients(torch.nn.Linear(2, 2))\n"
        "print(*(name for name in sys.modules if name.startswith('torch.distributed.fsdp')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == ""
