"""``attach``: compress the DistributedDataParallel that a training library has made."""

from __future__ import annotations

from typing import TypedDict

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.hooks.ddp import compress_ddp
from thinwire.hooks.handle import Compression
from thinwire.recipe import Recipe


class Options(TypedDict, total=False):
    """Keywords that go to ``compress_ddp`` as they are."""

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
) -> Compression:
    """``compress_ddp`` for a DistributedDataParallel. ``advice`` says how a user gets one."""
    # torch.compile may have wrapped it, which compress_ddp knows.
    if model is None or not isinstance(getattr(model, "_orig_mod", model), DistributedDataParallel):
        raise ConfigError(
            "only the gradients of a DistributedDataParallel can be compressed, "
            f"but this model is a {type(model).__name__}: {advice}"
        )
    # The recipe looks at its class to take over momentum: unwrap what Accelerate returns.
    inner = getattr(optimizer, "optimizer", optimizer)
    return compress_ddp(model, recipe, optimizer=inner, scaler=scaler, **options)
