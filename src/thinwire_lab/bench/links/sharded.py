"""Networks of fully_shard: torch's own averaging between replicas, none, or ours."""

from __future__ import annotations

from functools import cache

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.optimizer import Optimizer

from thinwire.hooks.fsdp.compress import compress_fsdp
from thinwire.hooks.rank_handle import RankHandle
from thinwire.recipe_text import read_recipe
from thinwire_lab.bench.links.cases import HSDP, LinkCase


@cache
def _mesh(shards: int) -> DeviceMesh:
    """A host is a replica. Made once: groups are kept until the process ends."""
    replicas = dist.get_world_size() // shards
    return init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))


def shard(case: LinkCase, net: nn.Module, shards: int) -> None:
    """Cut ``net``, layer by layer, in place."""
    mesh = _mesh(shards)
    on = mesh if case == HSDP else mesh["shard"]
    for layer in net.children():
        fully_shard(layer, mesh=on)
    fully_shard(net, mesh=on)


def exchange_between_replicas(
    case: LinkCase,
    net: nn.Module,
    optimizer: Optimizer,
    *,
    shards: int,
    deadline_seconds: float,
) -> RankHandle | None:
    """None where that is torch's own, or nothing."""
    if not case.recipe:
        return None
    return compress_fsdp(
        net,
        read_recipe(case.recipe),
        replicate=_mesh(shards)["replicate"],
        exchange=case.exchange,
        optimizer=optimizer,
        init_sync=False,
        deadline_seconds=deadline_seconds,
    )
