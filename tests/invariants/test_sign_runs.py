"""Momentum that is read as bits changes no bit of the weights, nor of the optimizer's state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire import _native
from thinwire.codec.base import Codec
from thinwire.compressor.fused import _OneBitFusion
from thinwire.gradient.steps import Carried
from thinwire.optim.sign_runs import SignRuns

FIRST, GAP = 2, 4
"""Steps 0, 1, 3, 7, 11 and so on are full ones, 2, 4, 5, 6, 8 and so on compressed."""


pytestmark = pytest.mark.usefixtures("restored_kernels")


class Run:
    """Training of two workers, which notes whether each piece's momentum was read as bits."""

    def __init__(
        self,
        *,
        runs: bool = True,
        codec: Codec | None = None,
        make: type[torch.optim.Adam] = torch.optim.AdamW,
        clipped: bool = False,
        piece_numel: int = 1 << 20,
        **settings: Any,
    ) -> None:
        torch.manual_seed(0)
        first = nn.Linear(33, 70)
        self.weight = first.weight
        self.net = nn.Sequential(first, nn.Tanh(), nn.Linear(70, 128))
        self.optimizer = make(self.net.parameters(), lr=3e-3, **settings)
        if clipped:  # before the cluster's own hook, and so what that finds
            self.optimizer.register_step_pre_hook(self._clip)
        recipe = tw.adam(codec, first=FIRST, most_gap=GAP)
        self.cluster = tw.VirtualCluster(
            self.net, self.optimizer, recipe, workers=2, piece_numel=piece_numel
        )
        self.as_bits: list[bool] = []
        self._runs = runs

    def train(self, *steps: int) -> None:
        self.as_bits.clear()
        with pytest.MonkeyPatch.context() as patch:
            if not self._runs:
                patch.setattr(SignRuns, "of_piece", lambda self, piece, momentum: None)
            patch.setattr(_OneBitFusion, "step", self._watched(_OneBitFusion.step))
            for step in steps:
                self.cluster.step(lambda worker, step=step: self._loss(step, worker))  # type: ignore[misc]

    def _watched(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def watched(fusion: Any, gradient: Tensor, change: Any, out: Any, **settings: Any) -> Any:
            if isinstance(change.info.carried, Carried):
                self.as_bits.append(change.info.carried.runs is not None)
            return step(fusion, gradient, change, out, **settings)

        return watched

    def _clip(self, *_: Any) -> None:
        nn.utils.clip_grad_norm_(self.net.parameters(), 1e-3)

    def _loss(self, step: int, worker: int) -> Tensor:
        x = torch.randn(4, 33, generator=torch.Generator().manual_seed(10 * step + worker))
        y: Tensor = self.net(x)
        return y.square().mean()

    @property
    def exp_avg(self) -> Tensor:
        momentum = self.optimizer.state[self.weight]["exp_avg"]
        assert isinstance(momentum, Tensor)
        return momentum

    def everything(self) -> list[Tensor]:
        states = self.optimizer.state_dict()["state"].values()
        return [*self.net.parameters(), *(x for state in states for x in state.values())]


def check_equal(quick: Run, slow: Run) -> None:
    for a, b in zip(quick.everything(), slow.everything(), strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32))


def twins(**settings: Any) -> tuple[Run, Run]:
    return Run(**settings), Run(runs=False, **settings)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("make", [torch.optim.AdamW, tw.optim.AdamW, torch.optim.Adam])
def test_weights_and_state_are_those_of_floats(make: type[torch.optim.Adam], threads: int) -> None:
    _native.set_threads(threads)
    quick, slow = twins(make=make, weight_decay=0.0 if make is torch.optim.Adam else 0.1)
    for each in (quick, slow):
        each.train(*range(30))
    check_equal(quick, slow)
    assert not any(slow.as_bits)
    assert quick.as_bits == expected_reads(30)


def expected_reads(steps: int) -> list[bool]:
    """Of two matrices and two workers: floats after a full step."""
    stage = tw.AdamMomentum(first=FIRST, most_gap=GAP)
    reads = []
    for step in range(steps):
        if not stage.is_full(step):
            reads += 4 * [not stage.is_full(step - 1)]
    return reads


def test_pieces_read_their_part() -> None:
    quick, slow = twins(piece_numel=1024)
    for each in (quick, slow):
        each.train(*range(7))
    check_equal(quick, slow)
    assert all(quick.as_bits[-20:])  # step 6: 3 and 9 pieces, by 2 workers


@pytest.mark.parametrize("codec", [tw.TopK(0.1), tw.OneBit(block=64)], ids=repr)
def test_other_codecs_train_as_before(codec: Codec) -> None:
    quick, slow = twins(codec=codec)
    for each in (quick, slow):
        each.train(*range(12))
    check_equal(quick, slow)


def test_l2_makes_a_momentum_of_many_magnitudes() -> None:
    quick, slow = twins(make=torch.optim.Adam, weight_decay=0.1)
    for each in (quick, slow):
        each.train(*range(12))
    assert not any(quick.as_bits)
    check_equal(quick, slow)


def in_place(run: Run) -> None:
    run.exp_avg.mul_(1.5)[5] = 0.25


def through_data(run: Run) -> None:
    run.exp_avg.data.mul_(-1.0)


def through_numpy(run: Run) -> None:
    run.exp_avg.numpy()[...] = 0.001


def another_tensor(run: Run) -> None:
    run.optimizer.state[run.weight]["exp_avg"] = run.exp_avg * 2


def other_memory(run: Run) -> None:
    run.exp_avg.data = run.exp_avg * 2


def checkpoint(run: Run) -> None:
    state = copy.deepcopy(run.optimizer.state_dict())
    for buffers in state["state"].values():
        buffers["exp_avg"].mul_(0.5)
    run.optimizer.load_state_dict(state)


def ordinary_step(run: Run) -> None:
    """As of an optimizer that is used without a cluster for a while."""
    twin = type(run.optimizer)(run.net.parameters(), lr=3e-3)
    twin.load_state_dict(run.optimizer.state_dict())  # shares the tensors
    for parameter in run.net.parameters():
        parameter.grad = torch.full_like(parameter, 0.01)
    twin.step()
    assert twin.state[run.weight]["exp_avg"] is run.exp_avg


@pytest.mark.parametrize("make", [torch.optim.AdamW, tw.optim.AdamW])
@pytest.mark.parametrize(
    "change",
    [
        in_place,
        through_data,
        through_numpy,
        another_tensor,
        other_memory,
        checkpoint,
        ordinary_step,
    ],
)
def test_a_momentum_that_was_changed_is_read_as_floats(
    change: Callable[[Run], None], make: type[torch.optim.Adam]
) -> None:
    quick, slow = twins(make=make)
    for each in (quick, slow):
        each.train(*range(5))
        with torch.no_grad():
            change(each)
        each.train(5)
    check_equal(quick, slow)
    assert quick.as_bits[0] is False  # of the first tensor, which was changed
    for each in (quick, slow):
        each.train(6)
    check_equal(quick, slow)
    assert all(quick.as_bits)


def test_an_answer_that_was_clipped_is_still_read_as_bits() -> None:
    quick, slow = twins(clipped=True)
    for each in (quick, slow):
        each.train(*range(7))
    check_equal(quick, slow)
    assert quick.as_bits == expected_reads(7)


def test_a_checkpoint_holds_floats_alone_and_goes_on_to_the_same_weights() -> None:
    run, resumed = Run(), Run()
    for each in (run, resumed):
        each.train(*range(5))
    state = copy.deepcopy(resumed.optimizer.state_dict())
    assert {key for s in state["state"].values() for key in s} == {"step", "exp_avg", "exp_avg_sq"}
    resumed.optimizer.load_state_dict(state)
    for each in (run, resumed):
        each.train(5)
    assert all(run.as_bits)
    assert not any(resumed.as_bits)
    check_equal(run, resumed)
