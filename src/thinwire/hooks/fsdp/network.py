"""``Replicas``: a network of fully_shard, its ranks that hold the same part, and the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from thinwire.errors import ConfigError
from thinwire.gradient.network import check_kinds, is_sharded, local_part, plain_name
from thinwire.hooks.fsdp.parts import Shards
from thinwire.hooks.fsdp.watch import ShardWatch

_ONE_LINE = (
    'call fully_shard(module, mesh=mesh["shard"]) with the one dimension that shards, and give '
    'replicate=mesh["replicate"], the other'
)


@dataclass(frozen=True, slots=True)
class Replicas:
    """``parameters`` are those by name of which this rank holds a part."""

    caller: str
    parameters: dict[str, Tensor]
    empty: dict[str, Tensor]
    """Parameters with fewer rows than parts, of which this rank has nothing."""
    group: dist.ProcessGroup
    """The ranks that hold the same part."""
    mesh: DeviceMesh
    """Of the ranks that hold the other parts of this replica."""

    @classmethod
    def of(cls, model: nn.Module, replicate: DeviceMesh, *, caller: str) -> Replicas:
        """Refuses a network that is sharded otherwise, with the change that makes it work."""
        check_kinds(model)
        found: dict[str, Tensor] = {}
        empty: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            _check_part(caller, name, parameter)
            kind = found if local_part(parameter).numel() else empty
            kind[plain_name(name)] = parameter
        if not any(parameter.requires_grad for parameter in found.values()):
            raise ConfigError(
                f"{caller}: this rank holds no part of any trained parameter: use fewer shards"
            )
        return cls(caller, found, empty, *_groups(caller, found, replicate))

    @property
    def trained(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.parameters.items() if p.requires_grad}

    @property
    def alike(self) -> tuple[int, int]:
        """What ranks of ``group`` must have in common: which part it is."""
        return self.mesh.get_local_rank(), self.mesh.size()

    def shards(self) -> Shards:
        every = {**self.parameters, **self.empty}
        shapes = {name: tuple(p.shape) for name, p in every.items() if p.requires_grad}
        return Shards(*self.alike, shapes)

    def watch(self, model: nn.Module, *, deadline_seconds: float) -> ShardWatch:
        """On accelerators collectives of the process group have a watchdog of their own."""
        parts: list[list[int]] = [[] for _ in range(dist.get_world_size(self.group))]
        dist.all_gather_object(parts, self.mesh.mesh.tolist(), group=self.group)
        ranks = sorted(rank for part in parts for rank in part)
        watch = ShardWatch(ranks, self.mesh.get_group(), deadline_seconds=deadline_seconds)
        if self.mesh.device_type == "cpu":
            watch.watch(model)
        return watch


def _check_part(caller: str, name: str, parameter: Tensor) -> None:
    """Refuse what fully_shard on one dimension of a mesh does not make."""
    from torch.distributed.tensor import Shard

    if getattr(parameter, "_fsdp_flattened", False):
        raise ConfigError(
            f"{caller}: {name} is of FullyShardedDataParallel, whose shards cut through "
            f"parameters: {_ONE_LINE}"
        )
    if not is_sharded(parameter):
        raise ConfigError(f"{caller}: {name} is not sharded: {_ONE_LINE}")
    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    if mesh.ndim > 1 and any(placement.is_replicate() for placement in placements):
        raise ConfigError(
            f"{caller}: {name} is on a mesh of {mesh.ndim} dimensions, over which fully_shard "
            f"averages densely before anything can be compressed: {_ONE_LINE}"
        )
    if mesh.ndim > 1 or not isinstance(placements[0], Shard):
        raise ConfigError(
            f"{caller}: {name} is cut as {placements}, by tensor parallelism perhaps, which "
            f"is not supported: {_ONE_LINE}"
        )
    if parameter.is_meta or parameter.dtype == torch.float16:
        raise ConfigError(
            f"{caller}: {name} is {parameter.dtype} on {parameter.device}, expected weights "
            "that are there, in float32 or bfloat16"
        )


def _groups(
    caller: str, parameters: dict[str, Tensor], replicate: DeviceMesh
) -> tuple[dist.ProcessGroup, DeviceMesh]:
    """The ranks that hold the same part as this one, and the mesh of those that hold the others."""
    if not isinstance(replicate, DeviceMesh) or replicate.ndim != 1:
        raise ConfigError(f"{caller}: replicate is not one dimension of a mesh: {_ONE_LINE}")
    meshes = {id(p.device_mesh): p.device_mesh for p in parameters.values()}  # type: ignore[attr-defined]
    shards = {tuple(mesh.mesh.tolist()): mesh for mesh in meshes.values()}
    if len(shards) > 1:
        raise ConfigError(f"{caller}: modules are sharded over different ranks: {_ONE_LINE}")
    ((ranks, shard),) = shards.items()
    others = set(replicate.mesh.tolist()) - {dist.get_rank()}
    if others & set(ranks):
        raise ConfigError(
            f"{caller}: ranks {sorted(others & set(ranks))} are among the replicas and hold "
            f"other parts of this one, too: {_ONE_LINE}"
        )
    return replicate.get_group(), shard
