"""``compress_module``: compression without DistributedDataParallel, for networks on CPUs."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from thinwire.checks import check_choice, check_positive
from thinwire.choice import choose_recipe
from thinwire.defaults import RANK_DEADLINE_SECONDS
from thinwire.errors import ConfigError, WorkerLost
from thinwire.gradient.network import check_gradients, check_one_rate, plain_name
from thinwire.gradient.pieces import Key
from thinwire.hooks.module_gradients import Arrival, ModuleCompression
from thinwire.hooks.rendezvous import EXCHANGES, RendezvousSettings, ranks_of, rendezvous
from thinwire.optim.takeover import use_momentum
from thinwire.recipe import Recipe


def compress_module(
    net: nn.Module,
    recipe: Recipe | None = None,
    *,
    exchange: str = "sharded",
    optimizer: Optimizer | None = None,
    group: dist.ProcessGroup | None = None,
    init_sync: bool = True,
    deadline_seconds: float = RANK_DEADLINE_SECONDS,
    seed: int = 0,
    force: bool = False,
) -> ModuleCompression:
    """Average the gradients of ``net`` over all ranks in every backward, as ``recipe`` says.

    For float32 parameters in CPU memory. Their gradients are encoded within backward, where it has
    left them, while DistributedDataParallel would copy each into a bucket first. All ranks must
    call it alike, with the network itself.

    ``recipe``, ``exchange``, ``optimizer``, ``deadline_seconds``, ``seed`` and ``force`` are those
    of ``compress_ddp``.
    ``group`` is the default one unless given. With ``init_sync`` all ranks begin with the weights
    and buffers of its first rank. Buffers, such as those of batch normalisation, are each rank's
    own after that.
    """
    recipe = choose_recipe(recipe, optimizer, owner="compress_module", force=force)
    _check_options(recipe, exchange, optimizer, deadline_seconds)
    ranks = ranks_of(group, caller="compress_module")
    parameters = _parameters(net)
    keys = [Key(name, tuple(p.shape)) for name, p in parameters.items() if p.requires_grad]
    alike = (init_sync, _shapes(net) if init_sync else None)
    settings = RendezvousSettings(
        "compress_module", recipe, keys, ranks, exchange, seed, deadline_seconds, alike=alike
    )
    membership = rendezvous(settings)
    if init_sync:
        _take_state_of(ranks[0], net, group, timedelta(seconds=deadline_seconds))
    compression = ModuleCompression(
        net,
        parameters,
        membership,
        recipe,
        optimizer=optimizer,
        force=force,
        deadline_seconds=deadline_seconds,
    )
    compression.watch_gradients(parameters)
    compression.carry(use_momentum(recipe, optimizer, parameters, alone=True))
    return compression


def _check_options(
    recipe: Recipe, exchange: str, optimizer: Optimizer | None, deadline_seconds: float
) -> None:
    check_choice(exchange, tuple(EXCHANGES), owner="compress_module", field="exchange")
    check_positive(deadline_seconds, owner="compress_module", field="deadline_seconds")
    if recipe.rescales:
        check_one_rate(optimizer)


def _shapes(net: nn.Module) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in net.state_dict().items()]


def _parameters(net: nn.Module) -> dict[str, Tensor]:
    """By name, if all can be exchanged from where they are, and no other compression does."""
    if isinstance(net, DistributedDataParallel):
        raise ConfigError(
            "compress_module: a DistributedDataParallel, expected the network itself: use "
            "compress_ddp, or do without DistributedDataParallel"
        )
    check_gradients(net)
    parameters: dict[str, Tensor] = {plain_name(n): p for n, p in net.named_parameters()}
    for name, parameter in parameters.items():
        if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
            raise ConfigError(
                f"compress_module: {name} is {parameter.dtype} on {parameter.device}, expected "
                "float32 on the CPU: use DistributedDataParallel and compress_ddp"
            )
    for parameter in parameters.values():
        Arrival.make_way(parameter)
    return parameters


@torch.no_grad()
def _take_state_of(
    rank: int, net: nn.Module, group: dist.ProcessGroup | None, deadline: timedelta
) -> None:
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        whole = tensor.detach().contiguous()
        try:
            work = dist.broadcast(whole, rank, group, async_op=True)
            if work is not None:
                work.wait(deadline)
        except RuntimeError as error:
            raise WorkerLost(
                f"rank {rank} or another is gone, or did not exchange the first {name} within "
                f"{deadline.total_seconds():g} s ({error})"
            ) from error
        if whole.data_ptr() != tensor.data_ptr():
            tensor.copy_(whole)
