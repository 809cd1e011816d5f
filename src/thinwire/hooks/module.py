"""``compress_module``: compression without DistributedDataParallel, for networks on CPUs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from thinwire.checks import check_choice, check_positive
from thinwire.choice import choose_recipe
from thinwire.defaults import RANK_DEADLINE_SECONDS
from thinwire.errors import ConfigError
from thinwire.gradient.network import check_gradients, check_one_rate, plain_name
from thinwire.gradient.pieces import Key
from thinwire.hooks.first_state import shapes_of, take_state_of
from thinwire.hooks.gradient_memory import GradientMemory
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
    alike = (init_sync, shapes_of(net) if init_sync else None)
    settings = RendezvousSettings(
        "compress_module", recipe, keys, ranks, exchange, seed, deadline_seconds, alike=alike
    )
    membership = rendezvous(settings)
    if init_sync:
        take_state_of(ranks[0], net, group, deadline_seconds=deadline_seconds)
    compression = ModuleCompression(
        net,
        parameters,
        GradientMemory({name: p for name, p in parameters.items() if p.requires_grad}),
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
