"""``wrap``: a network with the exchange of a case: plain DDP, with torch's ways, or with ours."""

# No "from __future__ import annotations": DDP reads the hook's annotations as objects.

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from thinwire.hooks.ddp import compress_ddp
from thinwire.hooks.local_steps import local_steps
from thinwire.hooks.module import compress_module
from thinwire.hooks.rank_handle import RankHandle
from thinwire.optim import SGD, AdamW
from thinwire.recipe_text import read_recipe
from thinwire_lab.bench.links.cases import (
    FP16,
    NONE,
    POST_LOCAL,
    POWERSGD,
    SERVERS,
    SILENT,
    LinkCase,
)
from thinwire_lab.bench.links.sharded import exchange_between_replicas

LEARNING_RATE = 1e-6

POWERSGD_START = 2
"""The first step that it compresses; with error feedback it cannot be less."""

_ONE_BUCKET_MB = 100_000.0


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A network as a case trains it, and what comes after each step of the optimizer."""

    model: nn.Module
    compression: RankHandle | None = None
    after_step: Callable[[], None] | None = None


class Still(Optimizer):
    """An optimizer that takes no time, for cases that count its steps. Only its first one changes
    weights: recipes that leave most of that out owe it for many rounds, and have as much to send as
    in training."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net.parameters(), {})
        self._has_moved = False

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]  # there is no loss
        if self._has_moved:
            return
        self._has_moved = True
        for parameter in self.param_groups[0]["params"]:
            parameter.mul_(1.001)  # a gradient as small as these would be rounded away


def optimizer_for(case: LinkCase, net: nn.Module, *, applies: bool) -> Optimizer:
    """One that moves nothing much. AdamW has its momentum already, for cases that send it."""
    if not applies and case.rounds is not None:
        return Still(net)
    if not case.recipe or not read_recipe(case.recipe).shares_momentum:
        return SGD(net.parameters(), lr=LEARNING_RATE)
    optimizer = AdamW(net.parameters(), lr=LEARNING_RATE)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def wrap(
    case: LinkCase,
    net: nn.Module,
    optimizer: Optimizer,
    *,
    bucket_mb: float | None,
    servers: Sequence[str],
    deadline_seconds: float,
    shards: int = 1,
) -> Wrapped:
    """Let a case exchange the gradients of ``net``. A collective: all hosts call it alike."""
    if case == NONE:
        return Wrapped(net)
    if case.sharded:
        between = exchange_between_replicas(
            case, net, optimizer, shards=shards, deadline_seconds=deadline_seconds
        )
        return Wrapped(net, between)
    if not case.ddp:
        return Wrapped(net, _without_ddp(case, net, optimizer, deadline_seconds))
    # With more than one bucket torch's PowerSGD deadlocks on gloo.
    ddp = _ddp(net, _ONE_BUCKET_MB if case in POWERSGD else bucket_mb)
    if case == SILENT:
        ddp.register_comm_hook(None, _send_nothing)
    if case == FP16:
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if case in POWERSGD:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=POWERSGD[case], start_powerSGD_iter=POWERSGD_START
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    if case == POST_LOCAL:
        return _post_local(case, ddp)
    if not case.recipe:
        return Wrapped(ddp)
    compression = compress_ddp(
        ddp,
        read_recipe(case.recipe),
        exchange=case.exchange,
        optimizer=optimizer,
        deadline_seconds=deadline_seconds,
        servers=servers if case.exchange == SERVERS else (),
        insecure=True,
    )
    return Wrapped(ddp, compression)


def _post_local(case: LinkCase, ddp: DistributedDataParallel) -> Wrapped:
    """Without a mean of gradients on each host, because there is one process on it."""
    state = post_localSGD_hook.PostLocalSGDState(  # type: ignore[no-untyped-call]  # torch's own
        None, None, start_localSGD_iter=0, post_local_gradient_allreduce=False
    )
    ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(case.period)
    return Wrapped(ddp, after_step=lambda: averager.average_parameters(ddp.parameters()))


def _without_ddp(
    case: LinkCase, net: nn.Module, optimizer: Optimizer, deadline_seconds: float
) -> RankHandle:
    if case.rounds is not None:
        return local_steps(
            net,
            optimizer,
            read_recipe(case.recipe),
            every=case.period,
            delay=case.rounds.delay,
            exchange=case.exchange,
            init_sync=False,
            deadline_seconds=deadline_seconds,
        )
    return compress_module(
        net,
        read_recipe(case.recipe),
        exchange=case.exchange,
        optimizer=optimizer,
        init_sync=False,
        deadline_seconds=deadline_seconds,
    )


def _send_nothing(state: None, bucket: GradBucket) -> Future[Tensor]:
    """Leaves what DDP costs around any hook: it copies every gradient into its bucket."""
    future: Future[Tensor] = Future()
    future.set_result(bucket.buffer())
    return future


def wait_for_all() -> None:
    """A barrier for all hosts."""
    dist.barrier()


def _ddp(net: nn.Module, bucket_mb: float | None) -> DistributedDataParallel:
    """Without the initial broadcast: weights are the same everywhere, and links may be slow."""
    return DistributedDataParallel(
        net, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True, init_sync=False
    )
