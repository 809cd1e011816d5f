"""Training with ``early_forward``, of any network, by workers in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.optim.optimizer import Optimizer

import thinwire as tw
from tests.server.servers import RunningServer, weights
from thinwire.recipe import Recipe
from thinwire.server.settings import Rules

DEADLINE = 30.0

AfterStep = Callable[[tw.Client, nn.Module, int], None]


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 5))


def loss_of(net: nn.Module, step: int, rank: int) -> Tensor:
    x = torch.randn(8, 20, generator=torch.Generator().manual_seed(1000 * step + rank))
    out: Tensor = net(x)
    return out.square().mean() + out[:, 0].mean()


def backward(net: nn.Module, step: int, rank: int = 0) -> None:
    loss_of(net, step, rank).backward()  # type: ignore[no-untyped-call]


def sgd(net: nn.Module) -> Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05)


def zero_grad(client: tw.Client, net: nn.Module, step: int) -> None:
    net.zero_grad()


@dataclass
class Training:
    """What is trained, and how; ``run`` gives the last weights of each worker."""

    recipe: Recipe = field(default_factory=lambda: tw.doublesqueeze(tw.OneBit()))
    make: Callable[[], nn.Module] = layers
    optimizer: Callable[[nn.Module], Optimizer] = sgd
    workers: int = 1
    steps: int = 4
    backward: Callable[[tw.Client, nn.Module, int, int], None] = lambda client, net, step, rank: (
        backward(net, step, rank)
    )
    after_step: AfterStep = zero_grad
    options: dict[str, Any] = field(default_factory=dict)

    def network(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return self.make()

    def run(self, server: RunningServer, *, early: Collection[int]) -> list[list[bytes]]:
        """``early`` are the workers whose forward begins early."""
        nets = [self.network() for _ in range(self.workers)]
        # Not in threads: with its first optimizer torch imports its compiler, for seconds.
        optimizers = [self.optimizer(net) for net in nets]
        errors: list[BaseException] = []

        def work(rank: int) -> None:
            try:
                self._work(server, nets[rank], optimizers[rank], rank, rank in early)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=2 * DEADLINE)
        for error in errors:
            raise error
        assert not any(thread.is_alive() for thread in threads)
        return [weights(net) for net in nets]

    def both(self) -> tuple[list[list[bytes]], list[list[bytes]]]:
        """With and without ``early_forward``."""
        found = []
        for early in (range(self.workers), ()):
            with RunningServer(self.recipe, Rules.synchronous(self.workers)) as server:
                found.append(self.run(server, early=early))
                assert server.error is None
        return found[0], found[1]

    def virtual(self) -> list[bytes]:
        net = self.network()
        optimizer = self.optimizer(net)
        scheduler = ExponentialLR(optimizer, 0.9)
        cluster = tw.VirtualCluster(net, optimizer, self.recipe, workers=self.workers, force=True)
        for step in range(self.steps):
            cluster.step(lambda rank, step=step: loss_of(net, step, rank))  # type: ignore[misc]
            scheduler.step()
        return weights(net)

    def _work(
        self,
        server: RunningServer,
        net: nn.Module,
        optimizer: Optimizer,
        rank: int,
        early: bool,
    ) -> None:
        with tw.Client(
            [server.address],
            self.recipe,
            rank=rank,
            workers=self.workers,
            deadline_seconds=DEADLINE,
            early_forward=early,
            force=True,  # what loses is exact, too
            **self.options,
        ) as client:
            client.attach(net, optimizer, scheduler=ExponentialLR(optimizer, 0.9))
            for step in range(self.steps):
                self.backward(client, net, step, rank)
                client.step()
                self.after_step(client, net, step)
