"""A small network, its data and its training, for tests with real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

import thinwire as tw
from thinwire.exchange.resharding import ExchangeState
from thinwire.hooks.handle import Compression
from thinwire.recipe import Recipe

RECIPES = {
    "1 bit": tw.doublesqueeze(tw.OneBit()),
    "top-k": tw.doublesqueeze(tw.TopK(0.02, values="float16")),
    "dgc": tw.dgc(0.02, momentum=0.9, warmup_steps=0),
    "dither": tw.clan(tw.Dither(4)),
}


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 5))


def wide_network() -> nn.Module:
    """Eight matrices that are large also as pieces: with two ranks each owns some of a bucket."""
    torch.manual_seed(3)
    hidden = [layer for _ in range(8) for layer in (nn.Linear(300, 300), nn.Tanh())]
    return nn.Sequential(nn.Linear(20, 300), *hidden, nn.Linear(300, 5))


class Branches(nn.Module):
    """Rank 0 uses one branch more than the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = nn.Linear(20, 40), nn.Linear(20, 40)
        self.last = nn.Linear(40, 5)

    def forward(self, x: Tensor, both: bool) -> Tensor:
        hidden = self.first(x) + (self.second(x) if both else 0.0)
        return self.last(hidden).square().mean()  # type: ignore[no-any-return]


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def batch(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, 20, generator=generator)


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    x = batch(step, rank)
    first = next(model.parameters())
    return nn.functional.cross_entropy(model(x.to(first.dtype)), (x[:, 0] > 0).long())


def weights(net: nn.Module) -> list[bytes]:
    return [p.detach().flatten().view(torch.uint8).numpy().tobytes() for p in net.parameters()]


def plain_sgd(net: nn.Module) -> Optimizer:
    return tw.optim.SGD(net.parameters(), lr=0.05)


def momentum_sgd(net: nn.Module) -> Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


class Trainer:
    """One rank's model, optimizer and compression; ``recipe`` None is plain DDP."""

    def __init__(
        self,
        recipe: Recipe | None,
        *,
        net: nn.Module | None = None,
        optimizer: Callable[[nn.Module], Optimizer] = plain_sgd,
        ddp: dict[str, Any] | None = None,
        module: bool = False,
        **options: Any,
    ) -> None:
        """Several buckets, so that DDP re-forms them. ``options`` are for ``compress_ddp``, or, if
        ``module``, for ``compress_module``, without DDP."""
        self.net = network() if net is None else net
        self.model: nn.Module
        self.optimizer = optimizer(self.net)
        self.compression: Compression | None = None
        if module:
            assert recipe is not None
            self.model = self.net
            self.compression = tw.compress_module(
                self.net, recipe, optimizer=self.optimizer, **options
            )
            return
        self.model = DistributedDataParallel(self.net, **{"bucket_cap_mb": 0.2, **(ddp or {})})
        if recipe is not None:
            self.compression = tw.compress_ddp(
                self.model, recipe, optimizer=self.optimizer, **options
            )

    def step(self, step: int, loss: Tensor | None = None) -> None:
        backward(loss_of(self.model, step, dist.get_rank()) if loss is None else loss)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def no_sync(self) -> AbstractContextManager[None]:
        if isinstance(self.compression, tw.ModuleCompression):
            return self.compression.no_sync()
        assert isinstance(self.model, DistributedDataParallel)
        return self.model.no_sync()

    def train(self, steps: range) -> list[bytes]:
        for step in steps:
            self.step(step)
        return weights(self.net)


def train(recipe: Recipe | None, steps: int, **options: Any) -> list[bytes]:
    """The weights of this rank after DDP training."""
    return Trainer(recipe, **options).train(range(steps))


def virtual(
    recipe: Recipe,
    workers: int,
    steps: int,
    *,
    net: nn.Module | None = None,
    optimizer: Callable[[nn.Module], Optimizer] = plain_sgd,
) -> list[bytes]:
    """What ``train`` must give, computed in one process."""
    net = network() if net is None else net
    cluster = tw.VirtualCluster(net, optimizer(net), recipe, workers=workers, force=True)
    for step in range(steps):
        cluster.step(partial(loss_of, net, step))
    return weights(net)


def exchange_state(compression: Compression | None) -> ExchangeState:
    """What this rank owes."""
    assert compression is not None
    (own,) = compression.state_dict().values()
    return own["exchange"]


def refused(make: Callable[[], object]) -> str:
    """The sentence that it is refused with."""
    try:
        make()
    except tw.ConfigError as error:
        return str(error)
    return "no error"


@contextmanager
def without_onednn() -> Iterator[None]:
    """Its products of 16-bit numbers use instructions that some virtual machines do not have."""
    torch.backends.mkldnn.set_flags(_enabled=False)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=True)  # type: ignore[no-untyped-call]


def floats(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.float32)
