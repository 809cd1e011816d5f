"""One rank on a host of its own: trains, and says what it and its network interface counted.

python -m tests.distributed.count_bytes RANK RANKS ADDRESS RECIPE STEPS
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import thinwire as tw
from tests.distributed.hosts import INTERFACE, MTU_NBYTES
from tests.distributed.training import Trainer, backward

WARM_UP_STEPS = 3
"""DDP tells all ranks how it forms its buckets in the first steps."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Bytes since the beginning, by Thinwire's count and by the kernel's."""

    sent: int
    received: int
    left: int
    came: int
    again: int
    """At least what the kernel sent twice, because an acknowledgement was late."""

    def since(self, before: Counted) -> dict[str, int]:
        pairs = {name: (getattr(self, name), getattr(before, name)) for name in self.__slots__}
        return {name: now - then for name, (now, then) in pairs.items()}


RECIPES = {
    "dgc": tw.dgc(ratio=0.01, momentum=0.9),
    "onebit": tw.doublesqueeze(tw.OneBit()),
    "dense": tw.dense(),
}


def count(trainer: Trainer) -> Counted:
    assert trainer.compression is not None
    stats = trainer.compression.stats()
    counters = Path(f"/sys/class/net/{INTERFACE}/statistics")
    left, came = (int((counters / name).read_text()) for name in ("tx_bytes", "rx_bytes"))
    return Counted(stats.sent_nbytes, stats.received_nbytes, left, came, sent_again())


def sent_again() -> int:
    names, values = (
        line.split()
        for line in Path("/proc/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")]) * MTU_NBYTES


def train(trainer: Trainer, steps: int) -> None:
    for _ in range(steps):
        backward(trainer.model(torch.randn(4, 1024)).square().mean())
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
    # All frames have arrived everywhere, acknowledgements too but for the last.
    dist.barrier()


def main() -> None:
    rank, ranks, address, recipe, steps = sys.argv[1:]
    dist.init_process_group(
        "gloo", init_method=f"tcp://{address}:29500", rank=int(rank), world_size=int(ranks)
    )
    torch.manual_seed(int(rank))
    net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    trainer = Trainer(RECIPES[recipe], net=net, ddp={"bucket_cap_mb": 25})
    train(trainer, WARM_UP_STEPS)
    before = count(trainer)
    train(trainer, int(steps))
    print(json.dumps(count(trainer).since(before)), flush=True)


if __name__ == "__main__":
    main()
