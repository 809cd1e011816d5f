"""Whose memory gradients are in, without DDP: what is cleared, copied, kept in place and freed."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.training import (
    RECIPES,
    Trainer,
    backward,
    exchange_state,
    loss_of,
    network,
)

ONE_BIT = RECIPES["1 bit"]


class Twins(nn.Module):
    """Autograd gives the gradients of both the same memory."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(numel)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return ((self.first.view(1, -1) + self.second.view(1, -1)) * x).sum()


class Overlapping(nn.Module):
    """The gradients of the first two are views of parts of the third one's."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(numel)) for _ in range(2))
        self.third = nn.Parameter(torch.zeros(2 * numel))

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.first, self.second])
        return ((both.view(2, -1) + self.third.view(2, -1)) * x).sum()


def gradients_of(net_class: type[Twins | Overlapping], numel: int, exchange: str) -> list[float]:
    """The mean of each gradient; all are sent, though the codec is one that clears them."""
    net = net_class(numel)
    tw.compress_module(net, tw.doublesqueeze(tw.TopK(1.0)), exchange=exchange)
    backward(net(torch.full((1, numel), 10.0 * dist.get_rank())))
    means = [p.grad.mean() for p in net.parameters() if p.grad is not None]
    return [float(mean) for mean in means]


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
@pytest.mark.parametrize("numel", [7, 40_000, 100_000])
def test_gradients_that_share_memory_are_averaged_once(numel: int, exchange: str) -> None:
    assert run(gradients_of, Twins, numel, exchange, ranks=2) == [[5.0, 5.0]] * 2
    assert run(gradients_of, Overlapping, numel, exchange, ranks=2) == [[5.0, 5.0, 5.0]] * 2


class Added(nn.Module):
    """The gradient of ``last`` comes first, in memory that backward goes on to read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.early, self.body = nn.Linear(300, 300), nn.Linear(300, 300)
        self.last = nn.Parameter(torch.zeros(300, 300))

    def forward(self, x: Tensor) -> Tensor:
        made = self.body(self.early(x))
        both = made.unsqueeze(0) + self.last.unsqueeze(0)
        return both.square().mean()  # type: ignore[no-any-return]


def gradients_beside_a_stale_one(compressed: bool) -> list[bytes]:
    """``early`` is frozen after a step, and its gradient is not cleared."""
    net, x = Added(), torch.ones(300, 300)
    if compressed:
        tw.compress_module(net, tw.doublesqueeze(tw.TopK(1.0)), exchange="allgather")
    trained = [net.body.weight, net.body.bias, net.last]
    for _ in range(2):
        for p in trained:
            p.grad = None
        backward(net(x))
        net.early.requires_grad_(False)
    return [p.grad.numpy().tobytes() for p in trained if p.grad is not None]


def test_a_stale_gradient_does_not_spoil_others() -> None:
    [plain] = run(gradients_beside_a_stale_one, False, ranks=1)
    assert run(gradients_beside_a_stale_one, True, ranks=2) == [plain] * 2


def sent_and_owed_of_twins_that_wait() -> list[list[float]]:
    """They share memory since a batch that was not exchanged; the next one does not use them."""
    net = nn.ModuleDict({"twins": Twins(100_000), "other": nn.Linear(3, 3)})
    recipe = tw.doublesqueeze(tw.TopK(0.01))
    compression = tw.compress_module(net, recipe, exchange="allgather")
    with compression.no_sync():
        backward(net["twins"](torch.full((1, 100_000), 10.0)))
    backward(net["other"](torch.ones(3)).sum())
    owed = exchange_state(compression)["push"]
    sent = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    sums = [sent[name] + owed[name]["residual"] for name in ("twins.first", "twins.second")]
    return [sorted(set(both.tolist())) for both in sums]


def test_gradients_that_share_memory_while_they_wait_are_sent_or_owed() -> None:
    assert run(sent_and_owed_of_twins_that_wait, ranks=2) == [[[10.0], [10.0]]] * 2


def gradient_in_memory_of_the_user() -> bool:
    net, mine = nn.Linear(300, 300, bias=False), torch.zeros(2, 300, 300)
    net.weight.grad = mine[1]
    tw.compress_module(net, tw.doublesqueeze(tw.TopK(1.0)), exchange="allgather")
    for _ in range(2):
        mine.zero_()
        backward(net(torch.ones(4, 300)).sum())
    return bool((mine[1] == 4.0).all())


def test_the_only_gradient_stays_in_memory_that_the_user_gave_it() -> None:
    assert run(gradient_in_memory_of_the_user, ranks=2) == [True, True]


def gradients_that_moved() -> list[str]:
    net = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300))
    made: dict[str, int] = {}

    def note(name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None
        made[name] = parameter.grad.data_ptr()

    for name, p in net.named_parameters():
        p.register_post_accumulate_grad_hook(partial(note, name))  # type: ignore[no-untyped-call]
    tw.compress_module(net, tw.doublesqueeze(tw.TopK(0.1)), exchange="allgather")
    backward(net(torch.ones(4, 300)).square().mean())
    means = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    return [name for name, mean in means.items() if mean.data_ptr() != made[name]]


def test_gradients_that_share_nothing_are_not_copied() -> None:
    assert run(gradients_that_moved, ranks=2) == [[], []]


def gradients_in_one_tensor(exchange: str) -> tuple[list[float], bool]:
    """As an optimizer wants it that works on all of them at once."""
    net = Twins(100_000)
    together = torch.zeros(200_000)
    net.first.grad, net.second.grad = together[:100_000], together[100_000:]
    tw.compress_module(net, tw.doublesqueeze(tw.TopK(1.0)), exchange=exchange)
    for _ in range(2):
        together.zero_()
        backward(net(torch.full((1, 100_000), 10.0 * dist.get_rank())))
    same = net.second.grad.data_ptr() == together[100_000:].data_ptr()
    return sorted(set(together.tolist())), same


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
def test_gradients_stay_in_memory_that_the_user_gave_them(exchange: str) -> None:
    assert run(gradients_in_one_tensor, exchange, ranks=2) == [([5.0], True)] * 2


def gradients_left_without_a_collector() -> int:
    """How many gradients of a step outlive zero_grad while no garbage collection runs."""
    trainer = Trainer(ONE_BIT, module=True)
    trainer.step(0)
    gc.collect()
    gc.disable()
    try:
        backward(loss_of(trainer.model, 1, dist.get_rank()))
        places = {p.grad.data_ptr() for p in trainer.net.parameters() if p.grad is not None}
        assert len(places) == len(list(trainer.net.parameters()))
        trainer.optimizer.zero_grad()
        here = [x for x in gc.get_objects() if type(x) is Tensor and x.layout == torch.strided]
        return sum(x.data_ptr() in places for x in here)
    finally:
        gc.enable()


def test_a_gradient_is_freed_when_the_script_lets_go_of_it() -> None:
    """A circle of references would keep all of them until Python looks for circles."""
    assert run(gradients_left_without_a_collector, ranks=2) == [0, 0]


def alive_after_the_network(closes: bool) -> list[bool]:
    net = network()
    compression = tw.compress_module(net, ONE_BIT)
    backward(loss_of(net, 0, dist.get_rank()))
    if closes:
        compression.close()
    handle_alive, weight_alive = weakref.ref(compression), weakref.ref(next(net.parameters()))
    del net, compression
    gc.collect()
    return [handle_alive() is not None, weight_alive() is not None]


@pytest.mark.parametrize("closes", [False, True])
def test_nothing_is_left_of_a_network_that_is_deleted(closes: bool) -> None:
    assert run(alive_after_the_network, closes, ranks=2) == [[False, False]] * 2
