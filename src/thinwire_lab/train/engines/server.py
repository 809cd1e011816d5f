"""``ServerEngine``: training through parameter servers, as one of several workers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from thinwire.client.client import Client
from thinwire_lab.tasks.base import Memory
from thinwire_lab.train.engines.base import DEADLINE_SECONDS, Step, Traffic
from thinwire_lab.train.plan import Plan


class ServerEngine:
    """See ``Engine``. Bytes are those of whole frames.

    If this worker was killed, the servers may be ahead of the checkpoint that it resumes from: then
    it first applies the updates it missed. Its residual of that time is lost, which is logged.
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
            force=True,
            local_steps=plan.settings.rounds,
        )
        if state is not None:
            self._load(state)
        # The optimizer's base rate is 1, so that the factor is the rate.
        scheduler = LambdaLR(self._optimizer, self._rate, last_epoch=self._begun(state) - 1)
        self._client.attach(self.net, self._optimizer, scheduler=scheduler)
        self._traffic = Traffic()

    def _begun(self, state: dict[str, Any] | None) -> int:
        """How many steps there were before."""
        if state is None:
            return 0
        exchange = state["exchange"]
        return int(exchange["version"] if not self._alone else exchange["local"]["steps"])

    @property
    def _alone(self) -> bool:
        return self._plan.settings.rounds is not None

    def _rate(self, step: int) -> float:
        return self._plan.rate(step, self._losses)

    def _load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._client.load_state_dict(state["exchange"])
        self._memory = state["memory"]

    @property
    def done(self) -> int:
        return self._client.stats().steps if self._alone else self._client.version

    def step(self, losses: tuple[float, ...]) -> Step:
        self._losses = losses
        self._optimizer.zero_grad()
        loss = self._plan.work.loss(
            self.net, step=self.done, worker=self._rank, memory=self._memory
        )
        loss.backward()  # type: ignore[no-untyped-call]
        self._client.step()
        if self._alone and self.done == self._plan.steps:
            self._client.synchronize()
        stats = self._client.stats()
        nbytes = self._traffic.since(stats.sent_nbytes, stats.received_nbytes)
        return Step(float(loss.detach()), *nbytes)

    def shown(self) -> AbstractContextManager[None]:
        return self._client.global_weights() if self._alone else nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "exchange": self._client.state_dict(),
            "memory": self._memory,
            "losses": self._losses,
        }

    def close(self, *, finished: bool) -> None:
        """A worker that will resume does not leave: the servers must keep its place."""
        if finished:
            self._client.close()
