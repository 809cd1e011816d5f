"""One rank on a host of its own: trains until another is gone, and says how long that took.

python -m tests.distributed.cut_link RANK RANKS ADDRESS RECIPE OPTIONS
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import thinwire as tw
from tests.distributed.training import RECIPES, Trainer, backward

WARM_STEPS = 3
"""DDP itself talks to all ranks in the first steps."""


def network() -> nn.Module:
    """More than the kernel buffers of a connection, if it is not compressed."""
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6)))


def train(trainer: Trainer) -> dict[str, Any]:
    """The error, and the seconds that its backward took."""
    for step in count():
        if step == WARM_STEPS:
            print("warm", flush=True)
        loss = trainer.model(torch.randn(4, 1024)).square().mean()
        start = time.monotonic()
        try:
            backward(loss)
        except tw.WorkerLost as error:
            return {"text": str(error), "seconds": time.monotonic() - start}
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
    raise AssertionError("count() ends")


def main() -> None:
    rank, ranks, address, recipe, options = sys.argv[1:]
    dist.init_process_group(
        "gloo", init_method=f"tcp://{address}:29500", rank=int(rank), world_size=int(ranks)
    )
    chosen = tw.dense() if recipe == "dense" else RECIPES[recipe]
    trainer = Trainer(chosen, net=network(), **json.loads(options))
    print(json.dumps(train(trainer)), flush=True)
    os._exit(0)  # what torch still does at the end is not what is timed


if __name__ == "__main__":
    main()
