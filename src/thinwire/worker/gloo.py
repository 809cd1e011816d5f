"""A process group over gloo for processes of one machine that meet in a file."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch.distributed as dist


def join_gloo(store: Path, *, rank: int, ranks: int, deadline_seconds: float) -> None:
    """Be ``rank`` of ``ranks``. ``store`` is a file that does not exist yet, the same for all.

    There is no way back but the end of the process: gloo sometimes aborts when it is taken down.
    """
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=deadline_seconds),
    )
