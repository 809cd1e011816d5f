"""``compress_fsdp``: compression between the replicas of a network that is sharded within each.

fully_shard averages gradients within a replica, and leaves to every rank its part of them. Each
part is then exchanged with the ranks that hold the same one in the other replicas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim.optimizer import Optimizer

from thinwire.checks import check_choice, check_positive
from thinwire.choice import choose_recipe
from thinwire.client.servers import connect_with
from thinwire.defaults import RANK_DEADLINE_SECONDS
from thinwire.errors import ConfigError
from thinwire.exchange.roles import norm_of
from thinwire.gradient.network import check_one_rate, local_part
from thinwire.gradient.pieces import Key
from thinwire.hooks.first_state import shapes_of, take_state_of
from thinwire.hooks.fsdp.network import Replicas
from thinwire.hooks.fsdp.places import ShardPlaces
from thinwire.hooks.module_gradients import Arrival, ModuleCompression
from thinwire.hooks.rendezvous import (
    EXCHANGES,
    SERVERS,
    RendezvousSettings,
    ServerAccess,
    ranks_of,
    rendezvous,
)
from thinwire.keys.settings import WorkerKeys
from thinwire.optim.lans import LANS
from thinwire.optim.takeover import use_momentum
from thinwire.recipe import Recipe


def compress_fsdp(
    model: nn.Module,
    recipe: Recipe | None = None,
    *,
    replicate: DeviceMesh,
    exchange: str = "sharded",
    optimizer: Optimizer | None = None,
    init_sync: bool = True,
    deadline_seconds: float = RANK_DEADLINE_SECONDS,
    seed: int = 0,
    servers: Sequence[str] = (),
    keys: WorkerKeys | None = None,
    insecure: bool = False,
    force: bool = False,
) -> ModuleCompression:
    """Average the gradients of ``model`` over its replicas in every backward, as ``recipe`` says.

    ``model`` is one of ``fully_shard``, on the dimension of a mesh along which it is sharded, and
    ``replicate`` is the other one:

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh["shard"])
        optimizer = torch.optim.AdamW(model.parameters())
        tw.compress_fsdp(model, replicate=mesh["replicate"], optimizer=optimizer)

    All ranks must call it alike, before the first forward. Each exchanges its part of every
    gradient with the ranks that hold the same part, so that bytes, residuals and the processor time
    of codecs are divided by the size of the shard. ``recipe``, ``optimizer``, ``exchange``,
    ``deadline_seconds``, ``seed`` and ``force`` are those of ``compress_ddp``. With ``servers``,
    give each rank the addresses of those that serve its part. With ``init_sync`` all replicas begin
    with the weights and buffers of the first.

    Accumulate batches with ``model.set_requires_gradient_sync`` or within ``no_sync()``.
    """
    options = _Options(exchange, deadline_seconds, servers, keys, insecure)
    recipe = choose_recipe(recipe, optimizer, owner="compress_fsdp", force=force)
    options.check(recipe, optimizer)
    replicas = Replicas.of(model, replicate, caller="compress_fsdp")
    _make_way(model, replicas, optimizer)
    ranks = ranks_of(replicas.group, caller="compress_fsdp")
    trained = replicas.trained
    settings = RendezvousSettings(
        caller="compress_fsdp",
        recipe=recipe,
        keys=[Key(name, tuple(local_part(p).shape)) for name, p in trained.items()],
        ranks=ranks,
        exchange=exchange,
        seed=seed,
        deadline_seconds=deadline_seconds,
        servers=options.access(trained.values()),
        alike=(replicas.alike, init_sync, shapes_of(model)),
    )
    membership = rendezvous(settings)
    if init_sync:
        take_state_of(ranks[0], model, replicas.group, deadline_seconds=deadline_seconds)
    compression = ShardCompression(
        model,
        replicas.parameters,
        ShardPlaces(trained),
        membership,
        recipe,
        optimizer=optimizer,
        force=force,
        deadline_seconds=deadline_seconds,
    )
    compression.hold(replicas.shards(), replicas.watch(model, deadline_seconds=deadline_seconds))
    compression.watch_gradients(trained)
    compression.carry(
        use_momentum(recipe, optimizer, trained, alone=True, empty=replicas.empty.values())
    )
    return compression


class ShardCompression(ModuleCompression):
    """What ``compress_fsdp`` returns."""

    def _norm(self, gradients: Iterable[Tensor]) -> float:
        """Of this replica's gradients: all ranks that share them have the same."""
        own = norm_of(gradients)
        return own if self._watch is None else math.sqrt(self._watch.sum(own**2))


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of ``compress_fsdp`` that say who averages."""

    exchange: str
    deadline_seconds: float
    servers: Sequence[str]
    keys: WorkerKeys | None
    insecure: bool

    def check(self, recipe: Recipe, optimizer: Optimizer | None) -> None:
        owner = "compress_fsdp"
        check_choice(self.exchange, (*EXCHANGES, SERVERS), owner=owner, field="exchange")
        check_positive(self.deadline_seconds, owner=owner, field="deadline_seconds")
        if bool(self.servers) != (self.exchange == SERVERS):
            raise ConfigError(
                "compress_fsdp: exchange='servers' and servers=[addresses] go together"
            )
        if recipe.rescales:
            check_one_rate(optimizer)
        if isinstance(optimizer, LANS):
            raise ConfigError(
                "compress_fsdp: LANS needs the norms of whole tensors, of which each rank has a "
                "part: use AdamW"
            )

    def access(self, trained: Iterable[Tensor]) -> ServerAccess | None:
        if not self.servers:
            return None
        parts = [local_part(parameter).detach() for parameter in trained]
        return ServerAccess(self.servers, connect_with(self.keys, insecure=self.insecure), parts)


def _make_way(model: nn.Module, replicas: Replicas, optimizer: Optimizer | None) -> None:
    """Refuse an optimizer of the network as it was, and another compression."""
    if optimizer is not None:
        known = {id(parameter) for parameter in model.parameters()}
        if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
            raise ConfigError(
                "compress_fsdp: the optimizer has parameters that the model has not: make it "
                "after fully_shard"
            )
    for parameter in replicas.parameters.values():
        Arrival.make_way(parameter)
