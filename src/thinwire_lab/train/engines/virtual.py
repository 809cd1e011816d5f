"""``VirtualEngine``: training with simulated workers, all in one process."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from thinwire.virtual.cluster import VirtualCluster
from thinwire.virtual.exchange import VirtualExchange
from thinwire.virtual.local_workers import LocalWorkers
from thinwire_lab.tasks.base import Memory
from thinwire_lab.train.engines.base import Step, set_rate
from thinwire_lab.train.plan import Plan


class VirtualEngine:
    """See ``Engine``. A resumed run gives the same result as an uninterrupted one, bit for bit."""

    def __init__(self, plan: Plan, state: dict[str, Any] | None) -> None:
        self._plan = plan
        workers, seed = plan.settings.workers, plan.settings.seed
        self.net, self._optimizer = plan.build()
        self._cluster = VirtualCluster(
            self.net,
            self._optimizer,
            plan.recipe,
            workers=workers,
            seed=seed,
            force=True,
            local_steps=plan.settings.rounds,
        )
        self._memories: list[Memory] = [{} for _ in range(workers)]
        if state is not None:
            self._load(state)

    @property
    def done(self) -> int:
        return self._cluster.steps

    def step(self, losses: tuple[float, ...]) -> Step:
        set_rate(self._optimizer, self._plan.rate(self.done, losses))
        loss = self._cluster.step(self._loss)
        travelled = [self._cluster.last]  # None in a step without an exchange
        if self._plan.settings.rounds is not None and self.done == self._plan.steps:
            travelled += self._cluster.synchronize()
        there = [exchanged for exchanged in travelled if exchanged is not None]
        pushed = sum(exchanged.pushed_nbytes for exchanged in there)
        return Step(loss, pushed, sum(exchanged.pulled_nbytes for exchanged in there))

    def _loss(self, worker: int) -> Tensor:
        memory = self._memories[worker]
        return self._plan.work.loss(self.net, step=self.done, worker=worker, memory=memory)

    def shown(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.done,
            "net": self.net.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "exchange": self._exchange().state_dict(),
            "memories": self._memories,
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._exchange().load_state_dict(state["exchange"])
        self._cluster.steps = state["steps"]
        self._memories = state["memories"]

    def _exchange(self) -> VirtualExchange | LocalWorkers:
        return self._cluster.local or self._cluster.exchange

    def close(self, *, finished: bool) -> None:
        """Nothing: there are no other processes."""
