"""One named tensor as the body of a frame. No files, no frames."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import ConfigError, RemoteProtocolError
from thinwire.server.marks import FILES
from thinwire.wire.body import Reader, Writer

_CODES: Mapping[torch.dtype, int] = {torch.float32: 1, torch.float64: 2}
_TYPES: Mapping[int, np.dtype[np.generic]] = {1: np.dtype("<f4"), 2: np.dtype("<f8")}


def write_tensor(piece: str, name: str, tensor: Tensor) -> Writer:
    """piece text, name text, type u8, dimensions u8, their sizes u64, then all elements."""
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise ConfigError(f"snapshot: {name} of {piece!r} is {tensor.dtype}, expected a float")
    body = Writer("tensor", FILES)
    body.text(piece)
    body.text(name)
    body.uint(code, 1)
    body.uint(tensor.dim(), 1)
    for size in tensor.shape:
        body.uint(size, 8)
    body.raw(tensor.detach().cpu().numpy().astype(_TYPES[code], copy=False).tobytes())
    return body


def read_tensor(data: memoryview) -> tuple[str, str, Tensor]:
    """Piece, name and a tensor of its own memory. Raises ProtocolError for anything else."""
    body = Reader("tensor", data, FILES)
    piece, name = body.text(), body.text()
    code = body.uint(1)
    kind = _TYPES.get(code)
    if kind is None:
        raise RemoteProtocolError(f"tensor: type {code}, expected one of {sorted(_TYPES)}")
    shape = tuple(body.uint(8) for _ in range(body.uint(1)))
    values = np.frombuffer(body.raw(math.prod(shape) * kind.itemsize), kind)
    body.finish()
    native = values.astype(kind.newbyteorder("="))  # a copy: what was read belongs to the frame
    return piece, name, torch.from_numpy(native.reshape(shape))
