"""``save`` and ``load``: the state of each rank in a file of its own, beside a checkpoint.

Every rank has other residuals, so what rank 0 alone would write is not enough. Nothing is sent.
"""

from __future__ import annotations

from pathlib import Path

import torch

from thinwire.files import replacing
from thinwire.hooks.handle import Compression


def save(compression: Compression, folder: Path, *, rank: int, name: str = "thinwire") -> None:
    """Write this rank's state; a file is complete or not there."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(_path(folder, rank, name)) as file:
        torch.save(compression.state_dict(), file)


def load(compression: Compression, folder: Path, *, rank: int, name: str = "thinwire") -> bool:
    """Continue from the files in ``folder``; False if there are none.

    A rank reads its own, or those of all ranks if their number or the exchange has changed.
    """
    path = _path(folder, rank, name)
    if path.exists():
        state = torch.load(path, weights_only=True)
        if compression.fits(state):
            compression.load_state_dict(state)
            return True
    if not _path(folder, 0, name).exists():
        return False
    # The number of ranks is in the file of rank 0: more files may be left of an earlier run.
    first = compression.checked([torch.load(_path(folder, 0, name), weights_only=True)])
    workers = max((state["workers"] for state in first.values()), default=0)
    paths = [_path(folder, number, name) for number in range(workers)]
    states = [torch.load(path, weights_only=True) for path in paths if path.exists()]
    compression.load_state_dicts(states)
    return True


def _path(folder: Path, rank: int, name: str) -> Path:
    return folder / f"{name}_rank_{rank}.pt"
