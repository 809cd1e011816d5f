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


def load(compression: Compression, folder: Path, *, rank: int, name: str = "thinwire") -> bool:
    """Continue from the files in ``folder``; False if there are none.

    A rank reads its own, or those of all ranks if their number or the exchange has changed.
    """
    own = _path(folder, rank, name)
    if own.exists():
        state = torch.load(own, weights_only=True)
        if compression.fits(state):
            compression.load_state_dict(state)
            return True
    if not _path(folder, 0, name).exists():
        return False
    # How many ranks there were, rank 0 says: more files may be left of an earlier run.
    (first,) = torch.load(_path(folder, 0, name), weights_only=True).values()
    everyones = [_path(folder, number, name) for number in range(first["workers"])]
    found = [torch.load(path, weights_only=True) for path in everyones if path.exists()]
    compression.load_state_dicts(found)
    return True


def _path(folder: Path, rank: int, name: str) -> Path:
    return folder / f"{name}_rank_{rank}.pt"
