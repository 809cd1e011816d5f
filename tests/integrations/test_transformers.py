"""A real Trainer and a small BERT on two processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import thinwire as tw
from tests.distributed.launch import run
from tests.integrations.ranks import (
    LEARNING_RATE,
    RECIPE,
    STEPS_PER_EPOCH,
    Batch,
    Report,
    check_resumed,
    check_whole,
    like_torchrun,
    report,
)
from thinwire.integrations.transformers import compress_trainer


def bert() -> BertForSequenceClassification:
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    return BertForSequenceClassification(config)


def sentences() -> list[Batch]:
    words = torch.randint(
        50, (2 * 4 * STEPS_PER_EPOCH, 10), generator=torch.Generator().manual_seed(7)
    )
    return [{"input_ids": row, "labels": row[0] % 2} for row in words]


class Recording(Trainer):  # type: ignore[misc]  # Transformers is not read
    def __init__(self, folder: str) -> None:
        model = bert()
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            num_train_epochs=2,
            per_device_train_batch_size=4,
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
            report_to=[],
            disable_tqdm=True,
            save_strategy="epoch",
            dataloader_pin_memory=False,
            ddp_find_unused_parameters=False,
            # Otherwise the Trainer multiplies this model's loss by the number of processes.
            average_tokens_across_devices=False,
        )
        optimizer = tw.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        super().__init__(model, arguments, train_dataset=sentences(), optimizers=(optimizer, None))
        self.batches: list[Batch] = []

    def training_step(self, model: nn.Module, inputs: Batch, *rest: object) -> Tensor:
        self.batches.append(dict(inputs))
        loss: Tensor = super().training_step(model, inputs, *rest)
        return loss


def loss_of(net: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = net(**batch).loss
    return loss


def train(folder: str, resume_from: str | None = None) -> Report:
    like_torchrun()
    trainer = Recording(folder)
    callback = compress_trainer(trainer, RECIPE)
    trainer.train(resume_from_checkpoint=resume_from)
    return report(trainer.model, callback.compression, trainer.batches)


def test_two_processes_train_as_the_virtual_cluster_and_resume_exactly(tmp_path: Path) -> None:
    whole = run(train, str(tmp_path / "whole"), ranks=2)
    check_whole(whole, bert(), loss_of)
    half = tmp_path / "whole" / f"checkpoint-{STEPS_PER_EPOCH}"
    resumed = run(train, str(tmp_path / "resumed"), str(half), ranks=2, keep=False)
    check_resumed(resumed, whole)


def test_one_process_is_refused_with_advice(tmp_path: Path) -> None:
    trainer = Recording(str(tmp_path))
    compress_trainer(trainer, RECIPE)
    with pytest.raises(tw.ConfigError, match="start with torchrun"):
        trainer.train()
