"""``take_state_of``: all ranks begin with the weights and buffers of one."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from thinwire.errors import WorkerLost
from thinwire.gradient.network import local_part


def shapes_of(net: nn.Module) -> list[tuple[str, torch.Size, torch.dtype]]:
    """What ranks must have in common before one of them gives its state to the others."""
    return [(name, tensor.shape, tensor.dtype) for name, tensor in net.state_dict().items()]


@torch.no_grad()
def take_state_of(
    rank: int, net: nn.Module, group: dist.ProcessGroup | None, *, deadline_seconds: float
) -> None:
    """Give ``net`` the weights and buffers that it has on global ``rank``; of sharded ones the part
    that both hold."""
    deadline = timedelta(seconds=deadline_seconds)
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        own = local_part(tensor).detach()
        whole = own.contiguous()
        try:
            work = dist.broadcast(whole, rank, group, async_op=True)
            if work is not None:
                work.wait(deadline)
        except RuntimeError as error:
            raise WorkerLost(
                f"rank {rank} or another is gone, or did not exchange the first {name} within "
                f"{deadline_seconds:g} s ({error})"
            ) from error
        if whole.data_ptr() != own.data_ptr():
            own.copy_(whole)
