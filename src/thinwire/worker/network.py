"""What of a network is trained: its names, and what cannot be."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError


def plain_name(name: str) -> str:
    """A parameter's name as it is without torch.compile, so that checkpoints fit both."""
    return name.replace("_orig_mod.", "")


def trained_parameters(net: nn.Module) -> dict[str, Tensor]:
    return {plain_name(name): p for name, p in net.named_parameters() if p.requires_grad}


def check_gradients(net: nn.Module) -> None:
    """Refuse a network whose gradients cannot be compressed."""
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
