"""``read_states``: the states of all ranks, of any number, from a distributed checkpoint."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from thinwire.errors import ConfigError


def read_states(checkpoint_id: str | os.PathLike[str], *, key: str) -> dict[str, Any]:
    """What was saved under ``key``, on all ranks together. All ranks must call it."""
    metadata = FileSystemReader(checkpoint_id).read_metadata()
    paths: dict[str, tuple[str, ...]] = metadata.planner_data
    wanted: dict[str, Any] = {}
    for name, path in paths.items():
        if path[0] == key:
            _put(wanted, path, _room_for(metadata.state_dict_metadata[name]))
    if key not in wanted:
        raise ConfigError(f"{os.fspath(checkpoint_id)}: nothing was saved as {key!r}")
    load(wanted, checkpoint_id=checkpoint_id)
    states: dict[str, Any] = wanted[key]
    return states


def _room_for(stored: object) -> Any:
    """torch loads in place: into a tensor of the right size, or over anything for the rest."""
    if isinstance(stored, TensorStorageMetadata):
        return torch.empty(stored.size, dtype=stored.properties.dtype)
    return 0


def _put(tree: dict[str, Any], path: tuple[str, ...], leaf: Any) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, {})
    tree[path[-1]] = leaf
