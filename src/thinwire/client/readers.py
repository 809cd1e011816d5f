"""``readers``: which module uses which parameters by itself, as far as that can be known."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from thinwire.errors import ConfigError

_READS_CHILDREN = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Modules that use parameters of their children without calling them."""


def readers(net: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Modules, and the parameters that each uses without calling another one.

    Raises ConfigError for modules that take no hooks.
    """
    if isinstance(net, torch.jit.ScriptModule):
        raise ConfigError("a ScriptModule has no hooks of its own: use early_forward=False")
    whole = isinstance(net, _READS_CHILDREN) or _is_compiled(net)
    yield net, list(net.parameters(recurse=whole))
    if not whole:
        for child in net.children():
            yield from readers(child)


def _is_compiled(module: nn.Module) -> bool:
    """A compiled module is called as a whole: hooks inside would cut it in parts."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
