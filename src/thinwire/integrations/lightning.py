"""Lightning: one callback more.

    from thinwire.integrations.lightning import CompressGradients

    trainer = Trainer(strategy="ddp", devices=2, callbacks=[CompressGradients()])

A Lightning checkpoint is one file, which may be moved, uploaded or deleted, so it holds the state
of every rank: they are sent to rank 0 when it is saved. ``DDPStrategy(ddp_comm_hook=...)`` is not
used because Lightning ignores it on CPUs.
"""

from __future__ import annotations

import io
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.defaults import RANK_DEADLINE_SECONDS
from thinwire.errors import ConfigError, WorkerLost
from thinwire.hooks.handle import Compression
from thinwire.integrations.attach import Options, attach
from thinwire.recipe import Recipe

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import rank_zero_warn
except ModuleNotFoundError as error:
    raise ImportError("Lightning is missing: pip install 'thinwire[lightning]'") from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.device_mesh import DeviceMesh
    from typing_extensions import Unpack

_KEY = "thinwire"


class CompressGradients(Callback):
    """Sends gradients as ``recipe`` says; without one, as fits the optimizer.

    ``compression`` is there from the start of training. With ``ModelParallelStrategy``, and a
    network that ``configure_model`` has cut with ``fully_shard``, ``replicate`` returns the
    dimension of the module's mesh along which its replicas are.
    """

    def __init__(
        self,
        recipe: Recipe | None = None,
        *,
        replicate: Callable[[LightningModule], DeviceMesh] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._replicate = replicate
        self.compression: Compression | None = None
        self._recipe = recipe
        self._options = options
        self._gather: Gather | None = None
        self._saved: list[Tensor] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if len(trainer.optimizers) != 1:
            raise ConfigError(
                f"CompressGradients needs one optimizer, but there are {len(trainer.optimizers)}"
            )
        self.compression = attach(
            trainer.strategy.model,
            self._recipe,
            self._options,
            optimizer=trainer.optimizers[0],
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            advice='use Trainer(strategy="ddp", devices=...)',
            replicate=None if self._replicate is None else self._replicate(pl_module),
        )
        seconds = self._options.get("deadline_seconds", RANK_DEADLINE_SECONDS)
        self._gather = Gather(deadline_seconds=seconds)
        if self._saved is not None:
            _load(self.compression, self._saved)
            self._saved = None

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, object]
    ) -> None:
        if self.compression is not None and self._gather is not None:
            file = io.BytesIO()
            torch.save(self.compression.state_dict(), file)
            data = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
            checkpoint[_KEY] = self._gather.to_rank_zero(data)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, list[Tensor]]
    ) -> None:
        # Comes before DDP wraps the model, and also before testing, where nothing is compressed.
        if trainer.training:
            self._saved = checkpoint.get(_KEY)
            if self._saved is None:
                rank_zero_warn("a checkpoint without compression: residuals start at zero")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    def _close(self) -> None:
        if self.compression is not None:
            self.compression.close()


def _load(compression: Compression, saved: list[Tensor]) -> None:
    compression.load_state_dicts([torch.load(_file(data), weights_only=True) for data in saved])


def _file(data: Tensor) -> io.BytesIO:
    return io.BytesIO(data.numpy().tobytes())


class Gather:
    """Messages to rank 0 over a gloo group of its own. All ranks must make it alike."""

    def __init__(self, *, deadline_seconds: float) -> None:
        self._deadline = timedelta(seconds=deadline_seconds)
        self._group = dist.new_group(timeout=self._deadline, backend="gloo")

    def to_rank_zero(self, data: Tensor) -> list[Tensor]:
        """On rank 0 the uint8 tensors of all ranks, by rank; elsewhere nothing.

        All ranks must call it. They are received one after the other, so that rank 0 needs room
        for the results alone.
        """
        if dist.get_rank() == 0:
            return [data, *(self._receive(rank) for rank in range(1, dist.get_world_size()))]
        self._wait(dist.isend(torch.tensor([data.numel()]), 0, group=self._group), 0)
        self._wait(dist.isend(data, 0, group=self._group), 0)
        return []

    def _receive(self, rank: int) -> Tensor:
        numel = torch.zeros(1, dtype=torch.int64)
        self._wait(dist.irecv(numel, rank, group=self._group), rank)
        data = torch.empty(int(numel), dtype=torch.uint8)
        self._wait(dist.irecv(data, rank, group=self._group), rank)
        return data

    def _wait(self, work: dist.Work | None, rank: int) -> None:
        try:
            if work is not None:
                work.wait(self._deadline)
        except RuntimeError as error:
            seconds = self._deadline.total_seconds()
            raise WorkerLost(
                f"rank {rank} did not take part in a checkpoint within {seconds:g} s, or is gone: "
                f"all ranks must save it ({error})"
            ) from error
