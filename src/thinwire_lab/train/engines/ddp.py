"""``DDPEngine``: training with DistributedDataParallel, as one of several processes over gloo."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from thinwire.hooks.ddp import compress_ddp
from thinwire.hooks.handle import Compression
from thinwire.hooks.local_exchange import LocalSteps
from thinwire.hooks.local_steps import local_steps
from thinwire_lab.tasks.base import Memory
from thinwire_lab.train.engines.base import DEADLINE_SECONDS, Step, Traffic, set_rate
from thinwire_lab.train.plan import Plan


def join_gloo(store: Path, *, rank: int, ranks: int, deadline_seconds: float) -> None:
    """Join the process group as ``rank``. ``store`` is a new file, the same for all ranks.

    Only the end of the process leaves it: gloo sometimes aborts in an orderly shutdown.
    """
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=deadline_seconds),
    )


class DDPEngine:
    """See ``Engine``. Bytes are those of payloads, including pieces that this rank itself owns."""

    def __init__(self, plan: Plan, rank: int, store: Path, state: dict[str, Any] | None) -> None:
        self._plan, self._rank = plan, rank
        workers = plan.settings.workers
        join_gloo(store, rank=rank, ranks=workers, deadline_seconds=DEADLINE_SECONDS)
        self.net, self._optimizer = plan.build()
        if state is not None:
            self.net.load_state_dict(state["net"])
        self._model, self._compression = _compressed(plan, self.net, self._optimizer)
        self._memory: Memory = {}
        self._traffic = Traffic()
        if state is not None:
            self._optimizer.load_state_dict(state["optimizer"])
            self._compression.load_state_dict(state["exchange"])
            self._memory = state["memory"]

    @property
    def done(self) -> int:
        return self._compression.steps

    def step(self, losses: tuple[float, ...]) -> Step:
        number = self.done
        set_rate(self._optimizer, self._plan.rate(number, losses))
        self._optimizer.zero_grad()
        loss = self._plan.work.loss(
            self._model, step=number, worker=self._rank, memory=self._memory
        )
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if isinstance(self._compression, LocalSteps) and self.done == self._plan.steps:
            self._compression.synchronize()
        stats = self._compression.stats()
        nbytes = self._traffic.since(stats.pushed_nbytes, stats.pulled_nbytes)
        return Step(float(loss.detach()), *nbytes)

    def shown(self) -> AbstractContextManager[None]:
        if isinstance(self._compression, LocalSteps):
            return self._compression.global_weights()
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "exchange": self._compression.state_dict(),
            "memory": self._memory,
        }

    def close(self, *, finished: bool) -> None:
        self._compression.close()


def _compressed(
    plan: Plan, net: nn.Module, optimizer: Optimizer
) -> tuple[nn.Module, Compression | LocalSteps]:
    """What is trained, and the handle of its exchange."""
    seed, rounds = plan.settings.seed, plan.settings.rounds
    if rounds is not None:
        local = local_steps(
            net,
            optimizer,
            plan.recipe,
            every=rounds.longest,
            delay=rounds.delay,
            fragments=rounds.fragments,
            seed=seed,
            deadline_seconds=DEADLINE_SECONDS,
        )
        return net, local
    model = DistributedDataParallel(net)
    compression = compress_ddp(
        model,
        plan.recipe,
        optimizer=optimizer,
        seed=seed,
        deadline_seconds=DEADLINE_SECONDS,
        force=True,  # experiments show also what loses
    )
    return model, compression
