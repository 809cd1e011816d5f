"""What goes wrong without DDP: refused in a sentence, and all ranks hear of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import thinwire as tw
from tests.distributed.fresh import fresh
from tests.distributed.handles import module_handle
from tests.distributed.launch import run
from tests.distributed.training import (
    RECIPES,
    Trainer,
    backward,
    batch,
    exchange_state,
    loss_of,
    network,
    refused,
)

ONE_BIT = RECIPES["1 bit"]


def state_after_a_backward_that_failed() -> bool:
    """The last layer's gradient is compressed, but never sent."""
    net = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300))
    compression = tw.compress_module(net, tw.doublesqueeze(tw.TopK(0.1)), exchange="allgather")
    backward(net(torch.ones(4, 300)).square().mean())
    next(net.parameters()).register_hook(stop)  # type: ignore[no-untyped-call]
    with pytest.raises(InterruptedError):
        backward(net(torch.ones(4, 300)).square().mean())
    owed = exchange_state(compression)["push"]
    return all(bool(state["residual"].isfinite().all()) for state in owed.values())


def stop(gradient: Tensor) -> None:
    raise InterruptedError


def test_after_a_backward_that_fails_the_state_can_be_saved() -> None:
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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
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
    module_handle(trainer).close()
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
