"""Accelerate: one line after ``prepare``.

    from thinwire.integrations.accelerate import compress

    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    compression = compress(accelerator, model, optimizer=optimizer)

``accelerator.save_state`` then writes the state of each rank into a file of its own, and
``load_state`` reads it. ``register_for_checkpointing`` would keep that of the main process only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.hooks.handle import Compression
from thinwire.integrations import rank_files
from thinwire.integrations.attach import Options, attach
from thinwire.recipe import Recipe

try:
    from accelerate import Accelerator
except ModuleNotFoundError as error:
    raise ImportError("Accelerate is missing: pip install 'thinwire[accelerate]'") from error

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from typing_extensions import Unpack


def compress(
    accelerator: Accelerator,
    model: nn.Module,
    recipe: Recipe | None = None,
    *,
    optimizer: Optimizer | None = None,
    name: str = "thinwire",
    replicate: DeviceMesh | None = None,
    **options: Unpack[Options],
) -> Compression:
    """Send the gradients of ``model``, which ``accelerator.prepare`` returned, as ``recipe`` says;
    without one, as fits ``optimizer``.

    With ``replicate`` it is a network that the script has cut with ``fully_shard`` itself, and that
    ``prepare`` has not seen; see ``tw.compress_fsdp``. Prepare the optimizer and the data.

    The state goes to ``{name}_rank_{rank}.pt`` in each checkpoint: give every model its own name.
    """
    compression = attach(
        model,
        recipe,
        options,
        optimizer=optimizer,
        scaler=accelerator.scaler,
        replicate=replicate,
        advice="compress what prepare() returns, and start with accelerate launch --num_processes",
    )
    rank = accelerator.process_index

    def save(models: object, weights: object, folder: str) -> None:
        rank_files.save(compression, Path(folder), rank=rank, name=name)

    def load(models: object, folder: str) -> None:
        if not rank_files.load(compression, Path(folder), rank=rank, name=name):
            # The optimizer's own momentum would come back with such a checkpoint.
            raise ConfigError(f"{folder} was saved without compression: load it before compress")

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    return compression
