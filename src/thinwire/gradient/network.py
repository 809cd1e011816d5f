"""Names of trained parameters, and checks that refuse networks and optimizers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError


def plain_name(name: str) -> str:
    """A parameter's name as it is without torch.compile, so that checkpoints fit both."""
    return name.replace("_orig_mod.", "")


def trained_parameters(net: nn.Module) -> dict[str, Tensor]:
    return {plain_name(name): p for name, p in net.named_parameters() if p.requires_grad}


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, of which each rank holds a part.

    Without an import, which would take longer than that of thinwire: a script that has parts has
    loaded the module that makes them.
    """
    for module in ("torch.distributed.tensor", "torch.distributed._tensor"):  # the latter until 2.4
        kind = getattr(sys.modules.get(module), "DTensor", None)
        if kind is not None:
            return isinstance(tensor, kind)
    return False


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, in the same memory: its shard of a DTensor, or all."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def check_same_parameters(net: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Raise ConfigError if other parameters are trained now than these, at ``attach``."""
    if trained_parameters(net).keys() != parameters.keys():
        raise ConfigError(
            "other parameters are trained than at attach: servers wait for those, so freeze and "
            "unfreeze before attach only"
        )


def check_gradients(net: nn.Module) -> None:
    """Refuse a network whose gradients cannot be compressed, or of which a rank holds a part."""
    _check_whole(net)
    check_kinds(net)


def check_kinds(net: nn.Module) -> None:
    """Refuse sparse and complex gradients."""
    for name, child in net.named_modules():
        if isinstance(child, nn.Embedding | nn.EmbeddingBag) and child.sparse:
            raise ConfigError(
                f"{name} has sparse gradients, which cannot be compressed: give it sparse=False"
            )
    for name, parameter in net.named_parameters():
        if parameter.is_complex():
            raise ConfigError(
                f"{name} is complex ({parameter.dtype}), only real gradients can be compressed: "
                "keep it as torch.view_as_real"
            )


def _check_whole(net: nn.Module) -> None:
    """Refuse a network of which each rank holds a part: there are no gradients to average."""
    for name, parameter in net.named_parameters():
        kind = _kind_of_part(parameter)
        if kind is not None:
            raise ConfigError(
                f"{name} is sharded ({kind}), of which each rank holds only a part: compress a "
                "network of fully_shard between its replicas with compress_fsdp, others without "
                "FSDP and tensor parallelism"
            )


def _kind_of_part(parameter: Tensor) -> str | None:
    """What made a part of this parameter; None if it is whole."""
    if getattr(parameter, "_fsdp_flattened", False):
        return "FullyShardedDataParallel"
    if is_sharded(parameter):
        return "a DTensor, of fully_shard or tensor parallelism"
    return None


def check_optimizer(net: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer that would move weights by something else than the servers' updates."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError("LBFGS evaluates the loss many times in a step: use another optimizer")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"{type(optimizer).__name__} evaluates the loss in its step: use another optimizer"
        )
    known = {id(p) for p in trained_parameters(net).values()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and id(parameter) not in known:
                raise ConfigError(
                    f"the optimizer has a parameter of shape {list(parameter.shape)} that the "
                    "network has not: workers would train it each on its own"
                )


def check_one_rate(optimizer: Optimizer | None) -> None:
    """For residuals that follow the learning rate: there must be one."""
    if optimizer is None:
        raise ConfigError("Residual(rescale=True) follows the learning rate: pass optimizer=...")
    if len(optimizer.param_groups) > 1:
        raise ConfigError(
            "Residual(rescale=True) follows the learning rate, of which the optimizer has one for "
            "each of its groups: use one group, or rescale=False"
        )
