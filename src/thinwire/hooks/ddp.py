"""``compress_ddp``: compress the gradients of a DistributedDataParallel script, by one line.

DDP's communication hook only hands buckets to background threads, so compression and exchange
overlap with the rest of backward.
"""

# No "from __future__ import annotations": DDP reads the hook's annotations as objects.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from thinwire.checks import check_choice, check_positive
from thinwire.choice import choose_recipe
from thinwire.client.servers import connect_with
from thinwire.defaults import RANK_DEADLINE_SECONDS
from thinwire.errors import ConfigError
from thinwire.gradient.network import (
    check_gradients,
    check_one_rate,
    plain_name,
    trained_parameters,
)
from thinwire.gradient.pieces import Key
from thinwire.hooks.ddp_buckets import BucketCompression
from thinwire.hooks.handle import Compression
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
from thinwire.optim.takeover import use_momentum
from thinwire.recipe import Recipe


def compress_ddp(
    model: nn.Module,
    recipe: Recipe | None = None,
    *,
    exchange: str = "sharded",
    hierarchy: str = "flat",
    optimizer: Optimizer | None = None,
    scaler: GradScaler | None = None,
    group: dist.ProcessGroup | None = None,
    deadline_seconds: float = RANK_DEADLINE_SECONDS,
    seed: int = 0,
    servers: Sequence[str] = (),
    keys: WorkerKeys | None = None,
    insecure: bool = False,
    force: bool = False,
) -> Compression:
    """Send the gradients of a DistributedDataParallel ``model`` as ``recipe`` says.

    Without a recipe, the one that fits ``optimizer`` is chosen, which is logged and in ``stats()``.
    A recipe that is known to lose with the optimizer warns, with the number; one that diverges is
    refused unless ``force`` is set (``tw.recipes()`` lists them).

    All ranks must call it alike. ``exchange`` is "sharded" (every rank serves its share, compressed
    both ways), "allgather" (all ranks get every push; for few ranks) or "servers" (synchronous
    parameter servers at the addresses ``servers``, with ``keys`` unless they are on this machine or
    ``insecure`` is set; see ``tw.Server``). ``hierarchy`` "host" averages densely within a host and
    compresses between hosts only. Recipes with momentum (``tw.momentum_sgd``, ``tw.adam``,
    ``tw.dgc``) need ``optimizer``, whose momentum they send. ``scaler`` is the GradScaler of mixed
    precision, if there is one: no residual may depend on its scale. ``group`` is the model's own
    unless given. If a rank does not answer within ``deadline_seconds``, backward raises an error
    that names it on all others.
    """
    options = _Options(
        exchange,
        hierarchy,
        optimizer,
        scaler,
        deadline_seconds,
        seed,
        servers,
        keys,
        insecure,
        force,
    )
    recipe = choose_recipe(recipe, optimizer, owner="compress_ddp", force=force)
    options.check(recipe)
    ddp = _unwrapped(model)
    check_gradients(ddp.module)
    names = {id(p): plain_name(name) for name, p in ddp.module.named_parameters()}
    ranks = ranks_of(group or ddp.process_group, caller="compress_ddp")
    compression = _compression(ddp, names, ranks, recipe, options)
    trained = trained_parameters(ddp.module)
    compression.watch_gradients(trained)
    compression.carry(use_momentum(recipe, optimizer, trained, alone=True))
    _register(ddp, compression)
    return compression


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of ``compress_ddp``, in its order."""

    exchange: str
    hierarchy: str
    optimizer: Optimizer | None
    scaler: GradScaler | None
    deadline_seconds: float
    seed: int
    servers: Sequence[str]
    keys: WorkerKeys | None
    insecure: bool
    force: bool

    def check(self, recipe: Recipe) -> None:
        check_choice(self.exchange, (*EXCHANGES, SERVERS), owner="compress_ddp", field="exchange")
        check_choice(self.hierarchy, HIERARCHIES, owner="compress_ddp", field="hierarchy")
        check_positive(self.deadline_seconds, owner="compress_ddp", field="deadline_seconds")
        _check_recipe(recipe, self.hierarchy, self.optimizer)
        _check_servers(self.exchange, self.servers, self.scaler, self.keys)

    def access(self, weights: Sequence[Tensor]) -> ServerAccess | None:
        if not self.servers:
            return None
        return ServerAccess(self.servers, connect_with(self.keys, insecure=self.insecure), weights)


def _compression(
    ddp: DistributedDataParallel,
    names: Mapping[int, str],
    ranks: Sequence[int],
    recipe: Recipe,
    options: _Options,
) -> BucketCompression:
    trained = [p for p in ddp.module.parameters() if p.requires_grad]
    settings = RendezvousSettings(
        caller="compress_ddp",
        recipe=recipe,
        keys=[Key(names[id(p)], tuple(p.shape)) for p in trained],
        ranks=ranks,
        exchange=options.exchange,
        hierarchy=options.hierarchy,
        seed=options.seed,
        deadline_seconds=options.deadline_seconds,
        servers=options.access(trained),
        undo=options.scaler is not None or any(p.dtype == torch.float16 for p in trained),
    )
    return BucketCompression(
        names,
        rendezvous(settings),
        recipe,
        optimizer=options.optimizer,
        force=options.force,
        scaler=options.scaler,
        may_be_unused=ddp.find_unused_parameters or ddp.static_graph,
        deadline_seconds=options.deadline_seconds,
    )


def _register(ddp: DistributedDataParallel, compression: BucketCompression) -> None:
    def thinwire_hook(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        return compression.take(bucket)

    ddp.register_comm_hook(state=None, hook=thinwire_hook)
    # After a failed backward DDP itself would only say that its internal state is wrong.
    ddp.register_forward_pre_hook(lambda module, inputs: compression.check())


def _unwrapped(model: nn.Module) -> DistributedDataParallel:
    """The DDP module, which torch.compile may have wrapped."""
    inner = getattr(model, "_orig_mod", model)
    if not isinstance(inner, DistributedDataParallel):
        raise ConfigError(
            f"compress_ddp: a {type(model).__name__}, expected DistributedDataParallel(model)"
        )
    if inner._comm_hooks:
        raise ConfigError("this model has a communication hook already: compress_ddp works once")
    return inner


def _check_recipe(recipe: Recipe, hierarchy: str, optimizer: Optimizer | None) -> None:
    if recipe.clips_model and hierarchy == "host":
        raise ConfigError(
            "clipping by the norm of the whole model needs it before hosts have averaged: use "
            "Clip(norm, scope='tensor') with hierarchy='host'"
        )
    if recipe.rescales:
        check_one_rate(optimizer)


def _check_servers(
    exchange: str,
    servers: Sequence[str],
    scaler: GradScaler | None,
    keys: WorkerKeys | None,
) -> None:
    if bool(servers) != (exchange == SERVERS):
        raise ConfigError("compress_ddp: exchange='servers' and servers=[addresses] go together")
    if not servers and keys is not None:
        raise ConfigError(
            "compress_ddp: keys protect what goes to servers; a process group has none"
        )
    if servers and scaler is not None:
        raise ConfigError(
            "a GradScaler skips steps, which servers have counted already: use bfloat16, or "
            "another exchange"
        )
