"""Accelerate on four processes, with a network that the script has cut itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch.distributed.fsdp import fully_shard

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.test_fsdp import meshes
from tests.integrations.ranks import LEARNING_RATE, data, like_torchrun, loss_of, network
from thinwire.integrations.accelerate import compress


def train(folder: str) -> tuple[list[bytes], int]:
    like_torchrun()
    accelerator = Accelerator(cpu=True)
    mesh = meshes()
    net: Any = network()
    fully_shard(net, mesh=mesh["shard"])
    optimizer = tw.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    wrapped, loader = accelerator.prepare(optimizer, data())
    compression = compress(
        accelerator, net, tw.doublesqueeze(), optimizer=wrapped, replicate=mesh["replicate"]
    )
    for batch in loader:
        accelerator.backward(loss_of(net, batch))
        wrapped.step()
        wrapped.zero_grad()
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()  # every rank reads what the main process wrote
    steps = compression.steps
    accelerator.load_state(folder)
    assert compression.steps == steps
    parameters: list[Any] = list(net.parameters())
    return [p.full_tensor().detach().numpy().tobytes() for p in parameters], steps


def test_replicas_are_equal_and_every_part_is_saved(tmp_path: Path) -> None:
    found = run(partial(train, str(tmp_path)), ranks=4, keep=False)
    assert all(one == found[0] for one in found)
    assert found[0][1] > 0
    assert len(list(tmp_path.glob("thinwire_rank_*.pt"))) == 4
