"""Gradients of any shape and type as what compression works on."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.errors import ConfigError


def flatten(gradient: Tensor) -> Tensor:
    """The gradient as a flat float32 CPU tensor: a view where it is one already."""
    if gradient.layout is not torch.strided or not gradient.dtype.is_floating_point:
        raise ConfigError(
            f"gradients must be dense and real, got {gradient.dtype} with layout {gradient.layout}"
        )
    return gradient.detach().to("cpu", torch.float32).reshape(-1).contiguous()
