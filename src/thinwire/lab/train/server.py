"""Training through parameter servers: one of several workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from thinwire.lab.tasks.base import Memory
from thinwire.lab.train.engine import DEADLINE_SECONDS, Step
from thinwire.lab.train.plan import Plan
from thinwire.worker.client import Client


class ServerEngine:
    """See ``Engine``. Bytes are frames and all.

    The servers may be further than the checkpoint that this worker goes on from, if it was killed:
    then it first applies what it missed. What it owed in that time is lost, and is logged.
    """

    def __init__(
        self, plan: Plan, rank: int, addresses: Sequence[str], state: dict[str, Any] | None
    ) -> None:
        self._plan, self._rank = plan, rank
        self._losses: tuple[float, ...] = () if state is None else tuple(state["losses"])
        self._memory: Memory = {}
        self.net, self._optimizer = plan.build()
        self._client = Client(
            addresses,
            plan.recipe,
            rank=rank,
            workers=plan.settings.workers,
            deadline_seconds=DEADLINE_SECONDS,
            seed=plan.settings.seed,
        )
        if state is not None:
            self._load(state)
        # The optimizer's own rate is 1, so that the factor is the rate.
        version = 0 if state is None else int(state["exchange"]["version"])
        scheduler = LambdaLR(self._optimizer, self._rate, last_epoch=version - 1)
        self._client.attach(self.net, self._optimizer, scheduler=scheduler)
        self._nbytes = (0, 0)

    def _rate(self, version: int) -> float:
        return self._plan.rate(version, self._losses)

    def _load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._client.load_state_dict(state["exchange"])
        self._memory = state["memory"]

    @property
    def done(self) -> int:
        return self._client.version

    def step(self, losses: tuple[float, ...]) -> Step:
        self._losses = losses
        self._optimizer.zero_grad()
        loss = self._plan.work.loss(
            self.net, step=self.done, worker=self._rank, memory=self._memory
        )
        loss.backward()  # type: ignore[no-untyped-call]
        self._client.step()
        return Step(float(loss.detach()), *self._traffic())

    def _traffic(self) -> tuple[int, int]:
        """Bytes of this step."""
        stats, (sent, received) = self._client.stats(), self._nbytes
        self._nbytes = stats.sent_nbytes, stats.received_nbytes
        return stats.sent_nbytes - sent, stats.received_nbytes - received

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "exchange": self._client.state_dict(),
            "memory": self._memory,
            "losses": self._losses,
        }

    def close(self, *, finished: bool) -> None:
        """One that will go on does not say goodbye: the servers would wait for nobody."""
        if finished:
            self._client.close()
