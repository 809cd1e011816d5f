"""A real Lightning trainer on two processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.optim.optimizer import Optimizer

import thinwire as tw
from tests.distributed.launch import run
from tests.integrations.ranks import (
    LEARNING_RATE,
    RECIPE,
    Batch,
    Report,
    check_resumed,
    check_whole,
    data,
    like_torchrun,
    loss_of,
    network,
    report,
)
from thinwire.integrations.lightning import CompressGradients


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.batches: list[Batch] = []

    def training_step(self, batch: Batch) -> Tensor:
        self.batches.append(batch)
        return loss_of(self.net, batch)

    def configure_optimizers(self) -> Optimizer:
        return tw.optim.SGD(self.net.parameters(), lr=LEARNING_RATE)


def trainer_with(*callbacks: pl.Callback, devices: int, strategy: str) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        max_epochs=2,
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train(folder: str, *, resume: bool) -> Report:
    like_torchrun()
    callback, model = CompressGradients(RECIPE), Classifier()
    saving = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    trainer = trainer_with(callback, saving, devices=2, strategy="ddp")
    trainer.fit(model, data(), ckpt_path=f"{folder}/epoch=0.ckpt" if resume else None)
    return report(model.net, callback.compression, model.batches)


def test_two_processes_train_as_the_virtual_cluster_and_resume_exactly(tmp_path: Path) -> None:
    whole = run(partial(train, str(tmp_path), resume=False), ranks=2)
    check_whole(whole, network(), loss_of)
    assert {path.name for path in tmp_path.iterdir()} == {"epoch=0.ckpt", "epoch=1.ckpt"}
    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)
    assert len(saved["thinwire"]) == 2
    resumed = run(partial(train, str(tmp_path), resume=True), ranks=2, keep=False)
    check_resumed(resumed, whole)


@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
def test_one_device_without_ddp_is_refused_with_advice(tmp_path: Path) -> None:
    saving = ModelCheckpoint(tmp_path)
    trainer = trainer_with(CompressGradients(RECIPE), saving, devices=1, strategy="auto")
    with pytest.raises(tw.ConfigError, match=r'use Trainer\(strategy="ddp"'):
        trainer.fit(Classifier(), data())
