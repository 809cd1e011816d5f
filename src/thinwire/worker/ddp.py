"""One line for a DistributedDataParallel script: its gradients travel compressed.

The hook only hands buckets to background threads, so compression and exchange overlap with the rest
of backward.
"""

# No "from __future__ import annotations": DDP reads the hook's annotations as objects.

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.gradient.keys import Key
from thinwire.recipe import Recipe, check_recipe
from thinwire.settings import check_choice, check_positive
from thinwire.transport.keys import WorkerCurve
from thinwire.worker.buckets import BucketCompression
from thinwire.worker.compression import Compression
from thinwire.worker.momentum import take_over_momentum
from thinwire.worker.network import check_gradients, check_one_rate, plain_name
from thinwire.worker.servers import connect_with
from thinwire.worker.team import EXCHANGES, HIERARCHIES, SERVERS, gather_team


def compress_ddp(
    model: nn.Module,
    recipe: Recipe,
    *,
    exchange: str = "sharded",
    hierarchy: str = "flat",
    optimizer: Optimizer | None = None,
    scaler: GradScaler | None = None,
    group: dist.ProcessGroup | None = None,
    deadline_seconds: float = 600.0,
    seed: int = 0,
    servers: Sequence[str] = (),
    keys: WorkerCurve | None = None,
    insecure: bool = False,
) -> Compression:
    """Send the gradients of a DistributedDataParallel ``model`` as ``recipe`` says.

    All ranks must call it alike.

    ``exchange`` is "sharded" (every rank serves its share, both ways compressed) or "allgather"
    (everybody hears every push; for few ranks) or "servers" (synchronous parameter servers at the
    addresses ``servers``, with ``keys`` unless they are on this machine or ``insecure`` is said;
    see ``tw.Server``). ``hierarchy`` "host" averages densely among the
    ranks of a host and compresses between hosts only; "flat" does not look at hosts.
    A recipe that keeps momentum (``tw.dgc``) needs ``optimizer``, whose momentum it takes over.
    ``scaler`` is the GradScaler of mixed precision, if there is one: what is remembered from step
    to step must not depend on its scale. ``group`` is the model's own unless given. A rank that
    does not answer within ``deadline_seconds`` ends backward on all others with an error that names
    it.
    """
    exchanges = (*EXCHANGES, SERVERS)
    check_choice(exchange, exchanges, owner="compress_ddp", field="exchange")
    check_choice(hierarchy, HIERARCHIES, owner="compress_ddp", field="hierarchy")
    check_positive(deadline_seconds, owner="compress_ddp", field="deadline_seconds")
    _check_recipe(recipe, hierarchy, optimizer)
    _check_servers(exchange, servers, scaler, keys)
    ddp = _unwrapped(model)
    check_gradients(ddp.module)
    names = {id(p): plain_name(name) for name, p in ddp.module.named_parameters()}
    trained = [p for p in ddp.module.parameters() if p.requires_grad]
    ranks = dist.get_process_group_ranks(group or ddp.process_group)
    team = gather_team(
        recipe,
        [Key(names[id(p)], tuple(p.shape)) for p in trained],
        ranks,
        exchange=exchange,
        hierarchy=hierarchy,
        caller="compress_ddp",
        seed=seed,
        deadline_seconds=deadline_seconds,
        servers=servers,
        connect=connect_with(keys, insecure=insecure) if servers else None,
        weights=trained,
    )
    compression = BucketCompression(
        names,
        team,
        optimizer=optimizer,
        scaler=scaler,
        whole_gradient_first=recipe.clips_model,
        may_be_unused=ddp.find_unused_parameters or ddp.static_graph,
        deadline_seconds=deadline_seconds,
    )
    take_over_momentum(recipe, optimizer, compressed=names)
    _register(ddp, compression)
    return compression


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
    check_recipe(recipe, owner="compress_ddp")
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
    keys: WorkerCurve | None,
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
