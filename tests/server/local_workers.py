"""Workers of servers that make local steps, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

import thinwire as tw
from tests.server.servers import DEADLINE, loss_of, network, weights
from thinwire.client.client import Client
from thinwire.recipe import Recipe

RECIPES = {
    "float32": tw.local_average(tw.Float32()),
    "1 bit": tw.local_average(),
    "1 bit, diloco": tw.diloco(lr=0.8, momentum=0.5),
    "top-k, delayed": tw.diloco(tw.TopK(0.05, values="int8"), momentum=0.5, delay=3),
}
WORKERS = 3


def adamw(net: nn.Module) -> Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=3e-3)


class Worker:
    """One worker, with a network of its own."""

    def __init__(
        self,
        addresses: Sequence[str],
        recipe: Recipe | None,
        rank: int,
        *,
        workers: int = WORKERS,
        every: int | tw.Rounds = 4,
        net: nn.Module | None = None,
    ) -> None:
        self.rank, self.net = rank, network() if net is None else net
        self.optimizer = adamw(self.net)
        self.client = Client(
            addresses,
            recipe,
            rank=rank,
            workers=workers,
            local_steps=every,
            deadline_seconds=DEADLINE,
        )

    def train(self, steps: range) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            loss_of(self.net, step, self.rank).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def save(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "client": self.client.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.client.load_state_dict(state["client"])

    def shown(self) -> list[bytes]:
        with self.client.global_weights():
            return weights(self.net)


def all_of(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """What these return, each in a thread of its own."""
    results: list[Any] = [None] * len(works)

    def work(number: int) -> None:
        try:
            results[number] = works[number]()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=2 * DEADLINE)
        assert not thread.is_alive()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
