"""``attach``: compress the DistributedDataParallel that a training library has made, or what
``fully_shard`` has cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.hooks.ddp import compress_ddp
from thinwire.hooks.handle import Compression
from thinwire.recipe import Recipe

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Options(TypedDict, total=False):
    """Keywords that go to ``compress_ddp``, or but for ``hierarchy`` to ``compress_fsdp``."""

    exchange: str
    hierarchy: str
    deadline_seconds: float
    seed: int
    force: bool


def attach(
    model: nn.Module | None,
    recipe: Recipe | None,
    options: Options,
    *,
    optimizer: Optimizer | None,
    scaler: GradScaler | None,
    advice: str,
    replicate: DeviceMesh | None = None,
) -> Compression:
    """``compress_ddp`` for a DistributedDataParallel. ``advice`` says how a user gets one. With
    ``replicate``, ``compress_fsdp``."""
    # The recipe looks at its class to take over momentum: unwrap what Accelerate returns.
    inner = getattr(optimizer, "optimizer", optimizer)
    if replicate is not None:
        return _attach_sharded(model, recipe, options, optimizer=inner, replicate=replicate)
    # torch.compile may have wrapped it, which compress_ddp knows.
    if model is None or not isinstance(getattr(model, "_orig_mod", model), DistributedDataParallel):
        raise ConfigError(
            "only the gradients of a DistributedDataParallel can be compressed, "
            f"but this model is a {type(model).__name__}: {advice}"
        )
    return compress_ddp(model, recipe, optimizer=inner, scaler=scaler, **options)


def _attach_sharded(
    model: nn.Module | None,
    recipe: Recipe | None,
    options: Options,
    *,
    optimizer: Optimizer | None,
    replicate: DeviceMesh,
) -> Compression:
    # It brings much of torch along, which other networks do not need.
    from thinwire.hooks.fsdp.compress import compress_fsdp

    if model is None or "hierarchy" in options:
        raise ConfigError("replicate is for a network of fully_shard, which has no hierarchy")
    given = {name: value for name, value in options.items() if name != "hierarchy"}
    return compress_fsdp(model, recipe, replicate=replicate, optimizer=optimizer, **given)  # type: ignore[arg-type]
