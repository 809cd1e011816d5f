"""Compression of a DDP model, which hands over its gradients in buckets."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.gradient.pieces import Piece, batches
from thinwire.worker.bucket import Bucket
from thinwire.worker.compression import STAGES, Compression
from thinwire.worker.pipeline import Pipeline
from thinwire.worker.sides import norm_of
from thinwire.worker.staging import Staging
from thinwire.worker.team import Team

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket
    from torch.amp import GradScaler


class BucketCompression(Compression):
    """The handle of ``compress_ddp``."""

    def __init__(
        self,
        names: Mapping[int, str],
        team: Team,
        *,
        optimizer: Optimizer | None,
        scaler: GradScaler | None,
        whole_gradient_first: bool,
        may_be_unused: bool,
        deadline_seconds: float,
    ) -> None:
        """``names`` are those of parameters, by id."""
        pipeline = Pipeline(STAGES, on_error=self._teller())
        super().__init__(team, pipeline, optimizer=optimizer, deadline_seconds=deadline_seconds)
        self._names = names
        self._scaler = scaler
        self._whole_gradient_first = whole_gradient_first
        self._may_be_unused = may_be_unused
        self._staging = Staging()
        self._buckets: list[Bucket] = []

    def take(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """What DDP's hook does: hand the bucket to the background threads."""
        self._check_usable()
        if bucket.index() == 0:
            # Not in backward is a rank whose data ended first, within DDP's Join. It waits for the
            # futures, and the next call raises what went wrong.
            with suppress(RuntimeError):
                self._begin_step()
            self._buckets = []
        taken = self._bucket(bucket)
        self._buckets.append(taken)
        if not self._whole_gradient_first:
            self._submit_bucket(taken, last=bucket.is_last())
        elif bucket.is_last():
            self._step.norm = norm_of(one.flat() for one in self._buckets)
            for one in self._buckets:
                self._submit_bucket(one, last=one is taken)
        return taken.future

    def _bucket(self, bucket: GradBucket) -> Bucket:
        buffer = bucket.buffer()
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        parameters = {self._names[id(parameter)]: parameter for parameter in bucket.parameters()}
        sizes = [parameter.numel() for parameter in parameters.values()]
        stops = accumulate(sizes)
        places = {
            name: (stop - size, stop)
            for name, size, stop in zip(parameters, sizes, stops, strict=True)
        }
        staged = self._staging.stage(bucket.index(), buffer, scale=scale)
        return Bucket(staged, places, parameters)

    def _submit_bucket(self, bucket: Bucket, *, last: bool) -> None:
        pieces = [piece for name in bucket.trained() for piece in self._pieces_of(name)]
        units = batches(pieces)
        for unit in units:
            completes = unit is units[-1]
            job = self._job(bucket, unit, completes_home=completes, last=last and completes)
            self._pipeline.submit(job)

    def _pieces_of(self, name: str) -> list[Piece]:
        if name not in self._pieces:
            raise ConfigError(
                f"{name} is trained now, but was frozen when compress_ddp was called: call that "
                "before freezing, or make a new DistributedDataParallel"
            )
        return self._pieces[name]

    def _end_of_backward(self) -> None:
        self.wait()
        if self._may_be_unused:
            # DDP throws away what it was given for parameters that no rank has used, but that
            # is gradient too: what was owed for them. After DDP's own callback, then.
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._give_to_unused)

    def _give_to_unused(self) -> None:
        for bucket in self._buckets:
            bucket.give_to_unused()
