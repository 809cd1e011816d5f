"""``BucketCompression``: the compression of a DDP model, which hands over gradients in buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire import _native
from thinwire.errors import ConfigError
from thinwire.exchange.base import Unit
from thinwire.exchange.pipeline import Pipeline
from thinwire.exchange.roles import norm_of
from thinwire.gradient.pieces import Piece, batches
from thinwire.gradient.steps import StepInfo, Updated
from thinwire.hooks.handle import Compression
from thinwire.hooks.rank_handle import STAGES
from thinwire.hooks.rendezvous import Membership
from thinwire.hooks.staging import Staged, Staging
from thinwire.recipe import Recipe

LEAST_FLOAT16_OVERFLOW = 65520.0
"""What is smaller is rounded to a finite float16."""


class Bucket:
    """The gradients of a DDP bucket: a GradientBuffer."""

    def __init__(
        self,
        staged: Staged,
        places: Mapping[str, tuple[int, int]],
        parameters: Mapping[str, Tensor],
    ) -> None:
        """``places`` are the start and the end of every gradient in the bucket."""
        self._staged = staged
        self._places = places
        self._parameters = parameters
        self._dtype = next(iter(parameters.values())).dtype
        self._flat: Tensor | None = None
        self.future = staged.future()

    def trained(self) -> list[str]:
        """The gradients to exchange. A frozen one must wait: no optimizer would apply it."""
        return [name for name, p in self._parameters.items() if p.requires_grad]

    def give_to_unused(self) -> None:
        """Let parameters that DDP has left alone have their gradient."""
        for name in self.trained():
            parameter, (start, stop) = self._parameters[name], self._places[name]
            mean = self._staged.stored()[start:stop].view(parameter.shape)
            if parameter.grad is None:
                parameter.grad = mean.clone()
            elif not torch.equal(parameter.grad, mean):
                parameter.grad.copy_(mean)

    def flat(self) -> Tensor:
        """All gradients, once they are here."""
        if self._flat is None:
            self._flat = self._staged.flat()
        return self._flat

    def unit(self, pieces: Sequence[Piece], info: StepInfo) -> Unit:
        flat = self.flat()
        gradients = {name: flat[start:stop] for name, (start, stop) in self._places.items()}
        return Unit(pieces, gradients, info)

    def store(self) -> bool:
        """Give DDP what the gradients are now."""
        self._staged.store()
        if self._dtype != torch.float16:
            return True
        return _native.max_abs(self.flat()) < LEAST_FLOAT16_OVERFLOW

    def complete(self) -> None:
        self._staged.complete(self.future)


if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket
    from torch.amp import GradScaler


class BucketCompression(Compression):
    """The handle of ``compress_ddp``."""

    def __init__(
        self,
        names: Mapping[int, str],
        membership: Membership,
        recipe: Recipe,
        *,
        optimizer: Optimizer | None,
        force: bool,
        scaler: GradScaler | None,
        may_be_unused: bool,
        deadline_seconds: float,
    ) -> None:
        """``names`` are those of parameters, by id."""
        super().__init__(
            membership,
            Pipeline(STAGES, on_error=self._teller()),
            parameters=names,
            recipe=recipe,
            optimizer=optimizer,
            force=force,
            deadline_seconds=deadline_seconds,
        )
        self._names = names
        self._scaler = scaler
        self._whole_gradient_first = recipe.clips_model
        self._may_be_unused = may_be_unused
        self._staging = Staging()
        self._buckets: list[Bucket] = []

    def take(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Hand a bucket to the background threads: what DDP's hook calls."""
        self._check_usable()
        if bucket.index() == 0:
            try:
                self._begin_step()
            except RuntimeError:
                self._begin_for_others()
            self._buckets = []
        taken = self._bucket(bucket)
        self._buckets.append(taken)
        if not self._whole_gradient_first:
            self._submit_bucket(taken, last=bucket.is_last())
        elif bucket.is_last():
            norm = norm_of(every.flat() for every in self._buckets)
            self._current.info = replace(self._current.info, gradient_norm=norm)
            for every in self._buckets:
                self._submit_bucket(every, last=every is taken)
        return taken.future

    def _begin_for_others(self) -> None:
        """A rank whose data ended first is here outside of backward, within DDP's Join. It waits
        for the futures, and the next call raises what went wrong. It makes no optimizer step."""
        self._current.info = replace(self._current.info, updated=Updated.UNKNOWN)
        self._optimizer_steps.forget()

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
            job = self._job(bucket, unit, completes_buffer=completes, last=last and completes)
            self._runner.submit(job)

    def _pieces_of(self, name: str) -> list[Piece]:
        if name not in self._pieces:
            raise ConfigError(
                f"{name} is trained now, but was frozen when compress_ddp was called: call that "
                "before freezing, or make a new DistributedDataParallel"
            )
        return self._pieces[name]

    def _end_of_backward(self) -> None:
        self.wait()
        # After DDP's own callback, which is next.
        engine = torch.autograd.Variable._execution_engine
        if self._may_be_unused:
            # DDP throws away what it was given for parameters that no rank has used, but that
            # is gradient too: what was owed for them.
            engine.queue_callback(self._give_to_unused)
        if self._scaler is None:  # which changes gradients by itself
            engine.queue_callback(self._look_at_gradients)

    def _give_to_unused(self) -> None:
        for bucket in self._buckets:
            bucket.give_to_unused()
