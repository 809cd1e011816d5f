"""Networks without DistributedDataParallel: the same training, encoded where gradients are made."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import thinwire as tw
from tests.distributed.fresh import fresh
from tests.distributed.launch import run
from tests.distributed.test_amp import states
from tests.distributed.test_modes import Branches
from tests.distributed.training import (
    RECIPES,
    Trainer,
    backward,
    batch,
    exchange_state,
    loss_of,
    momentum_sgd,
    network,
    plain_sgd,
    refused,
    train,
    virtual,
    weights,
    wide_network,
)
from thinwire.worker import gradients
from thinwire.worker.gradients import ModuleCompression, neighbours

ONE_BIT = RECIPES["1 bit"]


def train_module(recipe: tw.Recipe, steps: int, options: dict[str, Any]) -> list[bytes]:
    return train(recipe, steps, module=True, **options)


def test_the_network_has_large_and_small_gradients() -> None:
    """Or these tests would see only half of the code."""
    numels = [parameter.numel() for parameter in network().parameters()]
    assert min(numels) < gradients.SMALL_NUMEL <= max(numels)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_S1_ranks_agree_and_are_what_the_virtual_cluster_computes(name: str, ranks: int) -> None:
    found = run(train_module, RECIPES[name], 8, {}, ranks=ranks)
    assert all(one == found[0] for one in found)
    assert found[0] == virtual(RECIPES[name], ranks, 8)


@pytest.mark.parametrize("name", RECIPES)
def test_S1_allgather_is_what_a_lossless_answer_gives(name: str) -> None:
    found = run(train_module, RECIPES[name], 8, {"exchange": "allgather"}, ranks=2)
    assert found[0] == found[1]
    one_way = tw.Recipe(RECIPES[name].push, RECIPES[name].push_feedback)
    assert found[0] == virtual(one_way, 2, 8)


def train_wide(module: bool, exchange: str) -> list[bytes]:
    net = wide_network()
    if not module:
        return train(None, 8, net=net)
    return train(tw.dense(), 8, net=net, module=True, exchange=exchange)


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
def test_identity_codec_is_plain_ddp_bit_for_bit(exchange: str) -> None:
    """Also of tensors that travel beside frames."""
    plain = run(train_wide, False, "", ranks=2)
    assert run(train_wide, True, exchange, ranks=2) == plain


def train_clipped() -> list[bytes]:
    recipe = tw.dgc(0.02, momentum=0.9, clip_norm=0.1)
    return train(recipe, 6, module=True, optimizer=momentum_sgd)


def test_clipping_knows_the_norm_of_the_whole_gradient() -> None:
    found = run(train_clipped, ranks=2)
    recipe = tw.dgc(0.02, momentum=0.9, clip_norm=0.1)
    assert found[0] == found[1] == virtual(recipe, 2, 6, optimizer=momentum_sgd)


def handle(trainer: Trainer) -> ModuleCompression:
    assert isinstance(trainer.compression, ModuleCompression)
    return trainer.compression


def accumulate(module: bool) -> list[bytes]:
    """Two batches for each step."""
    trainer = Trainer(tw.dense() if module else None, module=module)
    for step in range(4):
        with trainer.no_sync():
            backward(loss_of(trainer.model, 2 * step, dist.get_rank()))
        trainer.step(2 * step + 1)
    return weights(trainer.net)


def test_gradients_of_several_batches_add_up_as_with_ddp() -> None:
    assert run(accumulate, True, ranks=2) == run(accumulate, False, ranks=2)


MAY_BE_UNUSED: dict[bool, dict[str, Any]] = {
    True: {"module": True},
    False: {"ddp": {"find_unused_parameters": True}},
}
"""How a step may leave parameters unused, without DDP and with it."""


def train_branches(module: bool) -> list[bytes]:
    """Rank 0 uses a branch more than rank 1, and after three steps nobody uses it."""
    trainer = Trainer(ONE_BIT, net=Branches(), **MAY_BE_UNUSED[module])
    rank = dist.get_rank()
    for step in range(6):
        trainer.step(step, trainer.model(batch(step, rank), both=rank == 0 and step < 3))
    return weights(trainer.net)


def test_P21_what_is_owed_for_unused_parameters_is_sent_as_with_ddp() -> None:
    assert run(train_branches, True, ranks=2) == run(train_branches, False, ranks=2)


def train_with_frozen_steps(module: bool) -> list[bytes]:
    trainer = Trainer(ONE_BIT, **MAY_BE_UNUSED[module])
    for step in range(6):
        for parameter in list(trainer.net.parameters())[2:4]:  # a large and a small one
            parameter.requires_grad_(step not in (2, 3))
        trainer.step(step)
    return weights(trainer.net)


def test_parameters_may_be_frozen_and_unfrozen_as_with_ddp() -> None:
    ours = run(train_with_frozen_steps, True, ranks=2)
    assert ours == run(train_with_frozen_steps, False, ranks=2)


def convolutions() -> nn.Module:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(72, 3))
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def train_channels_last(module: bool) -> list[bytes]:
    trainer = Trainer(tw.dense(), net=convolutions(), module=module)
    for step in range(4):
        x = batch(step, dist.get_rank())[:, :4, None, None].expand(-1, -1, 5, 5)
        x = x.contiguous(memory_format=torch.channels_last)
        trainer.step(step, trainer.model(x).square().mean())
    return weights(trainer.net)


def test_gradients_that_are_not_contiguous_are_averaged_as_with_ddp() -> None:
    assert run(train_channels_last, True, ranks=2) == run(train_channels_last, False, ranks=2)


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
    """``early`` is frozen after a step, and nobody clears its gradient."""
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


def state_after_a_backward_that_failed() -> bool:
    """The last layer's gradient is compressed, but never sent."""
    net = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300))
    compression = tw.compress_module(net, tw.doublesqueeze(tw.TopK(0.1)), exchange="allgather")
    backward(net(torch.ones(4, 300)).square().mean())
    before = residuals(compression)
    next(net.parameters()).register_hook(stop)  # type: ignore[no-untyped-call]
    with pytest.raises(InterruptedError):
        backward(net(torch.ones(4, 300)).square().mean())
    return residuals(compression) == before


def residuals(compression: ModuleCompression) -> dict[str, bytes]:
    owed = exchange_state(compression)["push"]
    return {name: state["residual"].numpy().tobytes() for name, state in owed.items()}


def stop(gradient: Tensor) -> None:
    raise InterruptedError


def test_a_backward_that_fails_leaves_no_trace_in_what_is_saved() -> None:
    assert run(state_after_a_backward_that_failed, ranks=2) == [True, True]


def error_at_the_end_of_backward() -> str:
    rows = nn.Embedding(10, 3)
    net = nn.Sequential(rows, nn.Linear(3, 3))
    compression = tw.compress_module(net, tw.dense(), exchange="allgather")
    rows.sparse = True
    with pytest.raises(RuntimeError) as raised:
        backward(net(torch.arange(4)).sum())
    try:
        compression.check()
    except RuntimeError as noted:
        return "noted" if noted is raised.value else str(noted)
    return "nothing noted"


def test_an_error_at_the_end_of_backward_is_noted() -> None:
    assert run(error_at_the_end_of_backward, ranks=2) == ["noted"] * 2


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


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Linear(20, 20), nn.Linear(20, 20)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh()).square().mean()  # type: ignore[no-any-return]


def train_tied(module: bool) -> list[bytes]:
    trainer = Trainer(ONE_BIT, net=Tied(), module=module)
    for step in range(4):
        backward(trainer.model(batch(step, dist.get_rank())))
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=False)
    return weights(trainer.net)


def test_tied_weights_and_gradients_that_are_kept_are_as_with_ddp() -> None:
    assert run(train_tied, True, ranks=2) == run(train_tied, False, ranks=2)


def train_in_a_group() -> list[bytes]:
    """Ranks 0 and 2 together, rank 1 alone."""
    groups = [dist.new_group([0, 2]), dist.new_group([1])]
    options = {"group": groups[dist.get_rank() % 2], "init_sync": False}
    return train(ONE_BIT, 4, module=True, **options)


def test_ranks_of_a_group_train_apart_from_others() -> None:
    first, second, third = run(train_in_a_group, ranks=3)
    assert first == third != second


def begin_differently(init_sync: bool) -> tuple[list[bytes], list[bytes]]:
    """The state before and after."""
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4))
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    nn.init.normal_(net[1].running_mean)  # type: ignore[arg-type]
    before = [tensor.numpy().tobytes() for tensor in net.state_dict().values()]
    tw.compress_module(net, ONE_BIT, init_sync=init_sync)
    return before, [tensor.numpy().tobytes() for tensor in net.state_dict().values()]


def test_all_ranks_begin_with_the_state_of_the_first() -> None:
    (first, a), (second, b) = run(begin_differently, True, ranks=2)
    assert first != second
    assert a == b == first


def test_ranks_may_be_left_with_states_of_their_own() -> None:
    assert all(before == after for before, after in run(begin_differently, False, ranks=2))


def disagree_about_the_beginning() -> str:
    return refused(lambda: tw.compress_module(network(), ONE_BIT, init_sync=dist.get_rank() == 0))


def test_ranks_that_begin_in_different_ways_are_refused() -> None:
    for text in run(disagree_about_the_beginning, ranks=2, keep=False):
        assert "all must be alike" in text


def overflow(exchange: str) -> tuple[bool, bool, int, list[bytes]]:
    trainer = Trainer(RECIPES["top-k"], module=True, exchange=exchange)
    trainer.train(range(2))
    before = states(trainer)
    first = next(trainer.net.parameters())
    lost = math.inf if dist.get_rank() == 1 else 0.0
    backward(loss_of(trainer.model, 2, dist.get_rank()) + first[0, 0] * lost)
    seen = not bool(first.grad is not None and first.grad.isfinite().all())
    unchanged = states(trainer) == before
    trainer.optimizer.zero_grad()
    after = trainer.train(range(3, 5))
    return seen, unchanged, handle(trainer).overflowed_steps, after


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
def test_P10_all_ranks_see_an_overflow_of_one_and_no_state_changes(exchange: str) -> None:
    first, second = run(overflow, exchange, ranks=2)
    assert first == second
    assert first[:3] == (True, True, 1)


def gradients_left_without_a_collector() -> int:
    """How many gradients of a step outlive zero_grad while nobody looks for circles."""
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


def train_without_the_handle() -> list[bytes]:
    net = network()
    optimizer = plain_sgd(net)
    tw.compress_module(net, ONE_BIT)
    gc.collect()
    for step in range(4):
        backward(loss_of(net, step, dist.get_rank()))
        optimizer.step()
        optimizer.zero_grad()
    return weights(net)


def test_nobody_needs_to_keep_the_handle() -> None:
    first, second = run(train_without_the_handle, ranks=2)
    assert first == second == virtual(ONE_BIT, 2, 4)


def again_and_again() -> tuple[str, list[bytes]]:
    net = network()
    optimizer = plain_sgd(net)
    first = tw.compress_module(net, ONE_BIT)
    twice = refused(lambda: tw.compress_module(net, ONE_BIT))
    first.close()
    tw.compress_module(net, ONE_BIT)
    for step in range(4):
        backward(loss_of(net, step, dist.get_rank()))
        optimizer.step()
        optimizer.zero_grad()
    return twice, weights(net)


def test_a_network_is_compressed_once_or_again_after_close() -> None:
    for twice, trained in run(again_and_again, ranks=2):
        assert "compressed already" in twice
        assert trained == virtual(ONE_BIT, 2, 4)


def steps_within_nested_pauses() -> int:
    trainer = Trainer(ONE_BIT, module=True)
    with trainer.no_sync():
        with trainer.no_sync():
            pass
        backward(loss_of(trainer.model, 0, dist.get_rank()))
    return handle(trainer).steps


def test_a_pause_ends_with_the_outermost() -> None:
    assert run(steps_within_nested_pauses, ranks=2) == [0, 0]


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.inner, self._reentrant = network(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return checkpoint(self.inner, x, use_reentrant=self._reentrant).square().mean()  # type: ignore[no-any-return]


def backward_within_backward(reentrant: bool) -> tuple[str, int]:
    net = Checkpointed(reentrant=reentrant)
    compression = tw.compress_module(net, ONE_BIT)
    return refused(lambda: backward(net(batch(0, dist.get_rank())))), compression.steps


def test_a_backward_within_another_is_refused() -> None:
    for text, _ in run(backward_within_backward, True, ranks=2, keep=False):
        assert "use_reentrant=False" in text
    assert run(backward_within_backward, False, ranks=2) == [("no error", 1)] * 2


WAIT_SECONDS = 60.0


def interrupted_while_waiting() -> float:
    """How long Ctrl-C takes on rank 0 while rank 1 sends nothing."""
    trainer = Trainer(ONE_BIT, module=True, deadline_seconds=WAIT_SECONDS)
    trainer.step(0)
    if dist.get_rank() == 1:
        threading.Event().wait(WAIT_SECONDS)  # alive, and silent
        return 0.0
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        trainer.step(1)
    return time.monotonic() - start


def test_ctrl_c_is_heard_while_a_rank_waits() -> None:
    with fresh(interrupted_while_waiting, ranks=2) as processes:
        assert processes[0].result(time.monotonic() + 50) < WAIT_SECONDS / 2


def fail_once(trainer: Trainer) -> None:
    """A backward that the script ends itself, at the last gradient, and survives."""

    def fail(gradient: Tensor) -> None:
        raise ArithmeticError("no mood")

    hook = next(trainer.net.parameters()).register_hook(fail)  # type: ignore[no-untyped-call]
    with pytest.raises(ArithmeticError):
        backward(loss_of(trainer.model, 1, dist.get_rank()))
    hook.remove()


def second_backward() -> str:
    trainer = Trainer(ONE_BIT, module=True, deadline_seconds=WAIT_SECONDS)
    trainer.step(0)
    if dist.get_rank() == 0:
        fail_once(trainer)
    try:
        trainer.step(1)
    except (tw.ConfigError, tw.WorkerLost) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_backward_after_one_that_failed_is_refused_and_others_hear_why() -> None:
    own, others = run(second_backward, ranks=2, keep=False)
    assert own.startswith("ConfigError: ")
    assert "has a second gradient in step 1" in own
    assert others == f"WorkerLost: rank 0 stopped at step 1: {own}"


def closed() -> str:
    trainer = Trainer(ONE_BIT, module=True)
    trainer.step(0)
    handle(trainer).close()
    return refused(lambda: backward(loss_of(trainer.model, 1, dist.get_rank())))


def test_after_close_backward_says_so() -> None:
    assert all("closed" in text for text in run(closed, ranks=2, keep=False))


def frozen_too_early() -> str:
    net = network()
    first = next(net.parameters())
    first.requires_grad_(False)
    trainer = Trainer(ONE_BIT, net=net, module=True)
    first.requires_grad_(True)
    return refused(lambda: backward(loss_of(trainer.model, 0, dist.get_rank())))


def test_a_parameter_frozen_before_compression_is_named() -> None:
    for text in run(frozen_too_early, ranks=2, keep=False):
        assert "0.weight is trained now" in text


def refusals() -> list[str]:
    net = network()
    attempts: list[Callable[[], object]] = [
        lambda: tw.compress_module(DistributedDataParallel(net), ONE_BIT),
        lambda: tw.compress_module(network().double(), ONE_BIT),
        lambda: tw.compress_module(net, ONE_BIT, exchange="servers"),
        lambda: tw.compress_module(net, ONE_BIT, deadline_seconds=0.0),
        lambda: tw.compress_module(net, tw.dgc(0.1)),
        lambda: tw.compress_module(nn.Embedding(3, 4, sparse=True), ONE_BIT),
    ]
    return [refused(attempt) for attempt in attempts]


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    wanted = [
        "use compress_ddp",
        "0.weight is torch.float64 on cpu",
        "'servers'",
        "deadline_seconds",
        "pass the optimizer",
        "sparse gradients",
    ]
    for found in run(refusals, ranks=2):
        for text, part in zip(found, wanted, strict=True):
            assert part in text


def measured() -> tw.Stats:
    trainer = Trainer(ONE_BIT, module=True)
    trainer.train(range(5))
    return handle(trainer).stats()


def test_bytes_and_times_are_counted() -> None:
    for stats in run(measured, ranks=2):
        assert stats.steps == 5
        assert stats.dense_nbytes == 5 * sum(4 * p.numel() for p in network().parameters())
        assert stats.sent_nbytes < stats.dense_nbytes / 10
        assert min(stats.encode_seconds, stats.serve_seconds, stats.decode_seconds) > 0
        assert stats.exchange_seconds >= stats.exposed_seconds > 0


def test_groups_grow_until_they_are_large_enough() -> None:
    layers = {f"{number}": 133_000 for number in range(24)}
    assert [len(group) for group in neighbours(layers)] == [1, 2, 4, 8, 8, 1]
    assert [name for group in neighbours(layers) for name in group] == list(layers)
    assert neighbours({}) == []
    assert neighbours({"a": 0, "b": 0}) == [["a", "b"]]


def test_small_gradients_travel_with_the_last_group() -> None:
    sizes = {"a": 70_000, "b": 10, "c": 70_000, "d": 10, "e": 2_000_000, "f": 10}
    assert neighbours(sizes, set("bcdef")) == [["a", "b", "c", "d", "e"], ["f"]]
    assert neighbours({"b": 10, "c": 20}, set("bc")) == [["b", "c"]]
