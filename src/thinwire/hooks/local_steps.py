"""``local_steps``: ranks train alone, and exchange what they have changed every so many steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from thinwire.checks import check_choice, check_positive
from thinwire.client.servers import connect_with
from thinwire.defaults import RANK_DEADLINE_SECONDS
from thinwire.errors import ConfigError
from thinwire.gradient.network import check_optimizer
from thinwire.hooks.first_state import shapes_of, take_state_of
from thinwire.hooks.local_exchange import LocalSteps
from thinwire.hooks.rendezvous import (
    EXCHANGES,
    HIERARCHIES,
    SERVERS,
    RendezvousSettings,
    ServerAccess,
    ranks_of,
    rendezvous,
)
from thinwire.keys.settings import WorkerKeys
from thinwire.local.global_weights import GlobalWeights
from thinwire.local.rounds import Rounds
from thinwire.recipe import Recipe, check_recipe, local_average

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from thinwire.hooks.fsdp.network import Replicas


def local_steps(
    net: nn.Module,
    optimizer: Optimizer,
    recipe: Recipe | None = None,
    *,
    every: int = 32,
    delay: int = 0,
    fragments: int = 1,
    exchange: str = "sharded",
    hierarchy: str = "flat",
    group: dist.ProcessGroup | None = None,
    replicate: DeviceMesh | None = None,
    init_sync: bool = True,
    deadline_seconds: float = RANK_DEADLINE_SECONDS,
    seed: int = 0,
    servers: Sequence[str] = (),
    keys: WorkerKeys | None = None,
    insecure: bool = False,
) -> LocalSteps:
    """Let each rank train ``net`` alone, and average what they have changed in rounds.

    One line in a script that trains on one machine: each ``optimizer.step()`` is counted, and every
    ``every`` of them old weights minus new travel as ``recipe`` says: ``local_average()`` (None),
    ``diloco()`` or ``sparseloco()``. Ranks must see different data. Call ``synchronize()`` at the
    end of training: it exchanges what is left, and all ranks have the same weights.

    With a ``delay`` training goes on for so many steps while a round's exchange is under way, and
    then its result is merged. With ``fragments`` parts of the network take turns, so that the link
    is used evenly. All ranks must call it alike; ``exchange``, ``hierarchy``, ``group``,
    ``deadline_seconds``, ``seed`` and the servers' settings are those of ``compress_ddp``. With
    ``init_sync`` all begin with the weights and buffers of the first rank.

    A network of ``fully_shard`` needs ``replicate``, as ``compress_fsdp`` does: its ranks train
    together within a replica, and replicas exchange what they have changed, part by part.
    """
    settings = _Settings(exchange, hierarchy, deadline_seconds, servers, keys, insecure)
    rounds = Rounds(every, delay, fragments)
    recipe = local_average() if recipe is None else recipe
    check_recipe(recipe, owner="local_steps")
    settings.check(rounds)
    _check_network(net, optimizer)
    replicas = _replicas(net, group, replicate)
    if replicas is not None:
        group = replicas.group
    ranks = ranks_of(group, caller="local_steps")
    weights = GlobalWeights(net, recipe, sharded=replicas is not None)
    part = None if replicas is None else replicas.alike
    alike = (rounds, part, init_sync, shapes_of(net) if init_sync else None)
    membership = rendezvous(
        RendezvousSettings(
            "local_steps",
            recipe,
            weights.keys,
            ranks,
            exchange,
            seed,
            deadline_seconds,
            hierarchy,
            settings.access(weights),
            alike=alike,
        )
    )
    if init_sync:
        take_state_of(ranks[0], net, group, deadline_seconds=deadline_seconds)
        weights.take_local()
    local = LocalSteps(weights, membership, recipe, rounds, optimizer, deadline_seconds)
    if replicas is not None:
        local.hold(replicas.shards(), replicas.watch(net, deadline_seconds=deadline_seconds))
    return local


@dataclass(frozen=True, slots=True)
class _Settings:
    """The options of ``local_steps`` that say who averages."""

    exchange: str
    hierarchy: str
    deadline_seconds: float
    servers: Sequence[str]
    keys: WorkerKeys | None
    insecure: bool

    def check(self, rounds: Rounds) -> None:
        owner = "local_steps"
        if rounds.is_auto:
            raise ConfigError(
                "local_steps: ranks of a process group exchange after the same number of steps: "
                'give a number, or train with servers and tw.Client(local_steps="auto")'
            )
        check_choice(self.exchange, (*EXCHANGES, SERVERS), owner=owner, field="exchange")
        check_choice(self.hierarchy, HIERARCHIES, owner=owner, field="hierarchy")
        check_positive(self.deadline_seconds, owner=owner, field="deadline_seconds")
        if bool(self.servers) != (self.exchange == SERVERS):
            raise ConfigError("local_steps: exchange='servers' and servers=[addresses] go together")
        if self.servers and rounds.fragments > 1:
            raise ConfigError(
                "local_steps: servers answer for the whole network at once: use fragments=1, or "
                "another exchange"
            )

    def access(self, weights: GlobalWeights) -> ServerAccess | None:
        if not self.servers:
            return None
        tensors = [weights[key.name] for key in weights.keys]
        return ServerAccess(self.servers, connect_with(self.keys, insecure=self.insecure), tensors)


def _replicas(
    net: nn.Module, group: dist.ProcessGroup | None, replicate: DeviceMesh | None
) -> Replicas | None:
    """The replicas of a sharded network; None if it is whole."""
    if replicate is None:
        return None
    if group is not None:
        raise ConfigError("local_steps: replicate says which ranks exchange: leave group out")
    # It brings much of torch along, which a whole network does not need.
    from thinwire.hooks.fsdp.network import Replicas

    return Replicas.of(net, replicate, caller="local_steps")


def _check_network(net: nn.Module, optimizer: Optimizer) -> None:
    if isinstance(net, DistributedDataParallel):
        raise ConfigError(
            "local_steps: a DistributedDataParallel averages gradients in every step: give the "
            "network itself, model.module, and train with that"
        )
    check_optimizer(net, optimizer)
