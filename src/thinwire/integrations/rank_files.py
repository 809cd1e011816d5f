"""The state of each rank in a file of its own, in the folder of a checkpoint.

Every rank has other residuals, so what rank 0 alone would write is not enough. Nothing travels.
"""

from __future__ import annotations

from pathlib import Path

import torch

from thinwire.worker.compression import Compression


def save(compression: Compression, folder: Path, *, rank: int, name: str = "thinwire") -> None:
    """Write this rank's state; a file is complete or not there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, rank, name)
    unfinished = path.with_suffix(".unfinished")
    torch.save(compression.state_dict(), unfinished)
    unfinished.replace(path)


def load(
    compression: Compression, folder: Path, *, rank: int, ranks: int, name: str = "thinwire"
) -> bool:
    """Continue from the files in ``folder``; False if there are none.

    A rank reads its own, or those of all ranks if their number has changed.
    """
    own = _path(folder, rank, name)
    everyones = list(folder.glob(f"{name}_rank_*.pt"))
    if own.exists():
        state = torch.load(own, weights_only=True)
        if f"rank {rank} of {ranks}" in state:
            compression.load_state_dict(state)
            return True
    if everyones:
        compression.load_state_dicts([torch.load(path, weights_only=True) for path in everyones])
    return bool(everyones)


def _path(folder: Path, rank: int, name: str) -> Path:
    return folder / f"{name}_rank_{rank}.pt"
