"""One line for a DistributedDataParallel script: its gradients travel compressed.

The hook only hands buckets to a background thread, so compression and exchange overlap with the
rest of backward.
"""

# No "from __future__ import annotations": DDP reads the hook's annotations as objects.

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from thinwire.compressor import flatten
from thinwire.errors import ConfigError
from thinwire.feedback.base import stages_of
from thinwire.feedback.clip import Clip
from thinwire.gradient.keys import Key
from thinwire.recipe import Recipe
from thinwire.settings import check_choice, check_positive
from thinwire.worker.exchange import AllGather, Exchange, Sharded
from thinwire.worker.link import Link
from thinwire.worker.momentum import check_momentum_is_kept_once, keeps_momentum
from thinwire.worker.pipeline import Pipeline
from thinwire.worker.state import States


class Compression:
    """What ``compress_ddp`` returns: state for checkpoints, and a way to stop."""

    def __init__(
        self,
        model: DistributedDataParallel,
        exchange: Exchange,
        link: Link,
        *,
        optimizer: Optimizer | None,
        deadline_seconds: float,
    ) -> None:
        parameters = model.module.named_parameters()
        self._names = {id(parameter): name for name, parameter in parameters}
        self._deadline = deadline_seconds
        self._optimizer = optimizer
        self._link = link
        self._exchange = exchange
        self._pipeline = Pipeline("thinwire")
        self._in_backward = False
        self.steps = 0

    def state_dict(self) -> dict[str, int | dict[str, States]]:
        """This rank's state, in plain tensors and numbers: save one per rank."""
        return {
            "steps": self.steps,
            "rank": self._link.rank,
            "workers": self._link.size,
            "exchange": self._exchange.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, int | dict[str, States]]) -> None:
        """Continue where this rank's ``state_dict`` was made."""
        found = (state["rank"], state["workers"])
        if found != (self._link.rank, self._link.size):
            raise ConfigError(
                f"this is the state of rank {found[0]} of {found[1]}, "
                f"but here is rank {self._link.rank} of {self._link.size}"
            )
        exchange, steps = state["exchange"], state["steps"]
        if not isinstance(exchange, dict) or not isinstance(steps, int):
            raise ConfigError("not a state that Compression.state_dict made")
        self._exchange.load_state_dict(exchange)
        self.steps = steps

    def close(self) -> None:
        """Stop the background thread. The model cannot be trained with DDP after that."""
        self._pipeline.close()

    def _submit(self, bucket: GradBucket) -> "torch.futures.Future[Tensor]":
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        buffer, gradients = bucket.buffer(), bucket.gradients()
        names = [self._names[id(parameter)] for parameter in bucket.parameters()]
        if not self._in_backward:
            self._in_backward = True
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._end_of_backward)

        def job() -> None:
            # The future must complete, or backward would never return; the error is raised
            # at the end of backward, as itself.
            try:
                if not self._pipeline.failed:
                    self._average(dict(zip(names, gradients, strict=True)))
            finally:
                future.set_result(buffer)

        self._pipeline.submit(job)
        return future

    def _average(self, gradients: dict[str, Tensor]) -> None:
        flat = {name: flatten(gradient) for name, gradient in gradients.items()}
        mean = self._exchange.average(flat, step=self.steps, learning_rate=self._learning_rate())
        for name, gradient in gradients.items():
            gradient.copy_(mean[name].view(gradient.shape))

    def _learning_rate(self) -> float | None:
        return None if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])

    def _end_of_backward(self) -> None:
        self._in_backward = False
        # Each bucket may wait as long as the link does, several times; only a bug waits longer.
        self._pipeline.drain(deadline_seconds=10 * self._deadline, what=f"step {self.steps}")
        self.steps += 1


_EXCHANGES: dict[str, type[Sharded] | type[AllGather]] = {
    "sharded": Sharded,
    "allgather": AllGather,
}


def compress_ddp(
    model: DistributedDataParallel,
    recipe: Recipe,
    *,
    exchange: str = "sharded",
    optimizer: Optimizer | None = None,
    group: dist.ProcessGroup | None = None,
    deadline_seconds: float = 600.0,
    seed: int = 0,
) -> Compression:
    """Send the gradients of ``model`` as ``recipe`` says. All ranks must call it alike.

    ``exchange`` is "sharded" (every rank serves its share, both ways compressed) or "allgather"
    (everybody hears every push; for few ranks).
    ``group`` is the one that the model was given (None: the default). A recipe that keeps momentum
    needs ``optimizer``, to make sure that it acts once. A rank that does not answer within
    ``deadline_seconds`` ends backward on all others with an error that names it.
    """
    check_choice(exchange, tuple(_EXCHANGES), owner="compress_ddp", field="exchange")
    check_positive(deadline_seconds, owner="compress_ddp", field="deadline_seconds")
    _check_recipe(recipe, optimizer)
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    link = Link(ranks, deadline_seconds=deadline_seconds)
    keys = [Key(name, tuple(p.shape)) for name, p in model.module.named_parameters()]
    averaging = _EXCHANGES[exchange](recipe, keys, link, seed=seed)
    compression = Compression(
        model, averaging, link, optimizer=optimizer, deadline_seconds=deadline_seconds
    )

    def thinwire_hook(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        return compression._submit(bucket)

    model.register_comm_hook(state=None, hook=thinwire_hook)
    return compression


def _check_recipe(recipe: Recipe, optimizer: Optimizer | None) -> None:
    stages = stages_of(recipe.push_feedback)
    if any(isinstance(stage, Clip) and stage.scope == "model" for stage in stages):
        raise ConfigError(
            "clipping by the norm of the whole model would wait for the end of backward: "
            "use Clip(norm, scope='tensor')"
        )
    if optimizer is not None:
        check_momentum_is_kept_once(recipe, optimizer)
    elif keeps_momentum(recipe):
        raise ConfigError("this recipe keeps the momentum: pass the optimizer, optimizer=...")
