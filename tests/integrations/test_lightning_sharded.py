"""Lightning's ModelParallelStrategy on four processes: two replicas of two parts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.optim.optimizer import Optimizer

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.test_fsdp import meshes
from tests.integrations.ranks import LEARNING_RATE, Batch, data, like_torchrun, loss_of, network
from thinwire.integrations.lightning import CompressGradients


class Sharded(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net: Any = network()

    def configure_model(self) -> None:
        self.mesh = meshes()
        fully_shard(self.net, mesh=self.mesh["shard"])

    def training_step(self, batch: Batch) -> Tensor:
        return loss_of(self.net, batch)

    def configure_optimizers(self) -> Optimizer:
        return tw.optim.SGD(self.net.parameters(), lr=LEARNING_RATE)


def train(folder: str) -> tuple[list[bytes], int]:
    like_torchrun()
    callback = CompressGradients(
        tw.doublesqueeze(), replicate=lambda module: cast(Any, module).mesh["replicate"]
    )
    model = Sharded()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=dist.get_world_size(),
        strategy=ModelParallelStrategy(data_parallel_size=4, tensor_parallel_size=1),
        max_epochs=1,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(model, data())
    assert callback.compression is not None
    parameters: list[Any] = list(model.net.parameters())
    weights = [p.full_tensor().detach().numpy().tobytes() for p in parameters]
    return weights, callback.compression.steps


def test_replicas_are_equal(tmp_path: Path) -> None:
    found = run(partial(train, str(tmp_path)), ranks=4, keep=False)
    assert all(one == found[0] for one in found)
    assert found[0][1] > 0
    fresh = [p.detach().numpy().tobytes() for p in network().parameters()]
    assert all(a != b for a, b in zip(found[0][0], fresh, strict=True))
