"""Hugging Face Trainer: one line before ``train``.

    from thinwire.integrations.transformers import compress_trainer

    compress_trainer(trainer)
    trainer.train()

Each rank's state is a file of its own in every checkpoint, and is read again when training resumes.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from thinwire.hooks.handle import Compression
from thinwire.integrations import rank_files
from thinwire.integrations.attach import Options, attach
from thinwire.recipe import Recipe

try:
    from transformers.trainer import Trainer
    from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
    from transformers.training_args import TrainingArguments
except ModuleNotFoundError as error:
    raise ImportError("Transformers is missing: pip install 'thinwire[transformers]'") from error

if TYPE_CHECKING:
    from typing_extensions import Unpack


def compress_trainer(
    trainer: Trainer, recipe: Recipe | None = None, **options: Unpack[Options]
) -> CompressGradients:
    """Send the gradients of ``trainer`` as ``recipe`` says; without one, as fits its optimizer.

    The result has ``compression`` from the start of ``train``; it stays open, because ``train`` may
    be called again.
    """
    callback = CompressGradients(trainer, recipe, options)
    trainer.add_callback(callback)
    _tell_checkpoint(trainer, callback)
    return callback


class CompressGradients(TrainerCallback):  # type: ignore[misc]  # Transformers is not read
    """What ``compress_trainer`` adds to a trainer."""

    def __init__(self, trainer: Trainer, recipe: Recipe | None, options: Options) -> None:
        self.compression: Compression | None = None
        self.resume_from: str | bool | None = None
        self._trainer = trainer
        self._recipe = recipe
        self._options = options
        self._model: nn.Module | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: object
    ) -> None:
        model = self._trainer.model_wrapped
        if self.compression is None or model is not self._model:  # a second train() may go on
            self.compression = self._start(model)
        folder = self.resume_from
        if folder is True:
            folder = get_last_checkpoint(args.output_dir)
        if folder and not rank_files.load(self.compression, Path(folder), rank=args.process_index):
            text = f"{folder} was saved without compression: residuals start at zero"
            warnings.warn(text, stacklevel=2)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: object
    ) -> None:
        if self.compression is not None and not args.save_only_model:
            folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            rank_files.save(self.compression, folder, rank=args.process_index)

    def _start(self, model: nn.Module) -> Compression:
        if self.compression is not None:
            self.compression.close()
        self._model = model
        return attach(
            model,
            self._recipe,
            self._options,
            optimizer=self._trainer.optimizer,
            scaler=self._trainer.accelerator.scaler,
            advice="start with torchrun or accelerate launch, without FSDP and DeepSpeed",
        )


def _tell_checkpoint(trainer: Trainer, callback: CompressGradients) -> None:
    """Callbacks are not told which checkpoint training resumes from, but ``train`` is."""
    train: Callable[..., object] = trainer.train

    @functools.wraps(train)
    def telling(
        resume_from_checkpoint: str | bool | None = None, *args: object, **rest: object
    ) -> object:
        callback.resume_from = resume_from_checkpoint
        return train(resume_from_checkpoint, *args, **rest)

    trainer.train = telling
