"""Compression without DistributedDataParallel, for networks that are trained on processors."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError, WorkerLost
from thinwire.gradient.keys import Key
from thinwire.recipe import Recipe, check_recipe
from thinwire.settings import check_choice, check_positive
from thinwire.worker.gradients import Arrival, ModuleCompression
from thinwire.worker.momentum import take_over_momentum
from thinwire.worker.network import check_gradients, check_one_rate, plain_name
from thinwire.worker.team import EXCHANGES, gather_team


def compress_module(
    net: nn.Module,
    recipe: Recipe,
    *,
    exchange: str = "sharded",
    optimizer: Optimizer | None = None,
    group: dist.ProcessGroup | None = None,
    init_sync: bool = True,
    deadline_seconds: float = 600.0,
    seed: int = 0,
) -> ModuleCompression:
    """Average the gradients of ``net`` over all ranks in every backward, as ``recipe`` says.

    For float32 parameters in CPU memory. Their gradients are encoded within backward, where it has
    left them, while DistributedDataParallel would copy each into a bucket first. All ranks must
    call it alike, with the network itself.

    ``exchange``, ``optimizer``, ``deadline_seconds`` and ``seed`` are those of ``compress_ddp``.
    ``group`` is the default one unless given. With ``init_sync`` all ranks begin with the weights
    and buffers of its first rank. Buffers, such as those of batch normalisation, are each rank's
    own after that.
    """
    check_choice(exchange, tuple(EXCHANGES), owner="compress_module", field="exchange")
    check_positive(deadline_seconds, owner="compress_module", field="deadline_seconds")
    check_recipe(recipe, owner="compress_module")
    if recipe.rescales:
        check_one_rate(optimizer)
    parameters = _parameters(net)
    for parameter in parameters.values():
        Arrival.make_way(parameter)
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    state = [(name, tensor.shape, tensor.dtype) for name, tensor in net.state_dict().items()]
    ranks = dist.get_process_group_ranks(group)
    team = gather_team(
        recipe,
        [Key(name, tuple(p.shape)) for name, p in trained.items()],
        ranks,
        exchange=exchange,
        hierarchy="flat",
        caller="compress_module",
        seed=seed,
        deadline_seconds=deadline_seconds,
        alike=(init_sync, state if init_sync else None),
    )
    if init_sync:
        _take_state_of(ranks[0], net, group, timedelta(seconds=deadline_seconds))
    take_over_momentum(recipe, optimizer, compressed={id(p) for p in parameters.values()})
    return ModuleCompression(
        net,
        trained,
        {name: p for name, p in parameters.items() if not p.requires_grad},
        team,
        optimizer=optimizer,
        whole_gradient_first=recipe.clips_model,
        deadline_seconds=deadline_seconds,
    )


def _parameters(net: nn.Module) -> dict[str, Tensor]:
    """By name, if all of them can be exchanged from where they are."""
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
