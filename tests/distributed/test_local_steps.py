"""Local steps: ranks that train alone and exchange what they have changed every so many steps."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.local_ranks import Rank, adamw
from tests.distributed.training import backward, loss_of, network, plain_sgd, refused, weights
from tests.local_networks import Normed
from thinwire.local.global_weights import Changes

RECIPES = {
    "float32": tw.local_average(tw.Float32()),
    "1 bit": tw.local_average(),
    "diloco": tw.diloco(tw.Float32(), lr=0.8, momentum=0.5),
    "1 bit, diloco": tw.diloco(lr=0.8, momentum=0.5),
    "top-k": tw.local_average(tw.TopK(0.05, values="int8")),
}


def trained(recipe: tw.Recipe, steps: int, options: dict[str, Any]) -> tuple[list[bytes], bool]:
    """The weights after ``steps`` and a last exchange, and whether the network has them."""
    rank = Rank(recipe, **options)
    rank.train(range(steps))
    rank.local.synchronize()
    with rank.local.global_weights():
        return weights(rank.net), True


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"exchange": "allgather"},
        {"delay": 2},
        {"fragments": 3},
        {"fragments": 2, "delay": 2},
    ],
    ids=str,
)
def test_S1_ranks_agree_after_the_last_exchange(name: str, options: dict[str, Any]) -> None:
    found = run(trained, RECIPES[name], 18, {"every": 4, **options}, ranks=2)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("options", [{}, {"delay": 2}, {"fragments": 2, "delay": 1}], ids=str)
def test_S1_ranks_are_what_the_virtual_cluster_computes(name: str, options: dict[str, Any]) -> None:
    net = network()
    cluster = tw.VirtualCluster(
        net, adamw(net), RECIPES[name], workers=3, local_steps=tw.Rounds(4, **options)
    )
    for step in range(18):
        cluster.step(partial(loss_of, net, step))
    found = run(shown, RECIPES[name], 18, {"every": 4, **options}, ranks=3)
    assert found[0] == found[1] == found[2] == weights(net)


def shown(recipe: tw.Recipe, steps: int, options: dict[str, Any]) -> list[bytes]:
    rank = Rank(recipe, **options)
    rank.train(range(steps))
    rank.local.wait()
    with rank.local.global_weights():
        return weights(rank.net)


class Sum(nn.Module):
    """Its gradients are its inputs: eighths, so that nothing is ever rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(300.0).view(20, 15) / 16)

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


def eighths(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(-32, 33, (20, 15), generator=generator) / 8


def sums(ours: bool, steps: int) -> list[bytes]:
    net: nn.Module = Sum()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.25)
    model = net
    if ours:
        tw.local_steps(net, optimizer, tw.local_average(tw.Float32()), every=1)
    else:
        model = DistributedDataParallel(net)
    for step in range(steps):
        optimizer.zero_grad()
        backward(model(eighths(step, dist.get_rank())))
        optimizer.step()
    return weights(net)


def test_I1_one_step_a_round_is_data_parallel_training_bit_for_bit() -> None:
    """Where old minus new is exact, as it is here; elsewhere both round, in different places."""
    plain = run(sums, False, 50, ranks=2)
    assert run(sums, True, 50, ranks=2) == plain


def steps_beside_ddp(ours: bool, steps: int) -> list[bytes]:
    net = network()
    optimizer = plain_sgd(net)
    model: nn.Module = net
    if ours:
        tw.local_steps(net, optimizer, tw.local_average(tw.Float32()), every=1)
    else:
        model = DistributedDataParallel(net)
    for step in range(steps):
        optimizer.zero_grad()
        backward(loss_of(model, step, dist.get_rank()))
        optimizer.step()
    return weights(net)


def test_I1_one_step_a_round_is_data_parallel_training_up_to_rounding() -> None:
    plain, found = (run(steps_beside_ddp, ours, 20, ranks=2)[0] for ours in (False, True))
    for a, b in zip(plain, found, strict=True):
        x, y = (torch.frombuffer(bytearray(data), dtype=torch.float32) for data in (a, b))
        torch.testing.assert_close(x, y, rtol=0, atol=2e-6)


def resumed(recipe: tw.Recipe, at: int, options: dict[str, Any]) -> tuple[list[bytes], list[bytes]]:
    """Weights of a run that was not interrupted, and of one that was, after step ``at``."""
    whole = Rank(recipe, **options)
    whole.train(range(21))
    first = Rank(recipe, **options)
    first.train(range(at))
    saved = first.local.state_dict(), first.optimizer.state_dict(), first.net.state_dict()
    first.local.close()
    second = Rank(recipe, **options)
    second.net.load_state_dict(saved[2])
    second.optimizer.load_state_dict(saved[1])
    second.local.load_state_dict(saved[0])
    second.train(range(at, 21))
    return weights(whole.net), weights(second.net)


@pytest.mark.parametrize("name", ["1 bit, diloco", "top-k"])
@pytest.mark.parametrize("at", [3, 4, 6, 9])
@pytest.mark.parametrize("options", [{}, {"delay": 2, "fragments": 2}], ids=str)
def test_a_run_resumes_bit_for_bit_also_within_a_round(
    name: str, at: int, options: dict[str, Any]
) -> None:
    for whole, interrupted in run(resumed, RECIPES[name], at, {"every": 4, **options}, ranks=2):
        assert whole == interrupted


def owed_and_given(recipe: tw.Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """What this rank changed in all rounds, what was applied, and what it owes in the end."""
    rank = Rank(recipe, every=3, net=Sum, optimizer=plain_sgd)
    given = torch.zeros(300, dtype=torch.float64)
    take = rank.local._weights.changes

    def watched(names: list[str], *, goes_on: bool) -> Changes:
        changes = take(names, goes_on=goes_on)
        given.add_(changes.flat["weight"])
        return changes

    rank.local._weights.changes = watched  # type: ignore[assignment, method-assign]
    first: Tensor = rank.net.weight.detach().clone()
    for step in range(30):
        rank.optimizer.zero_grad()
        backward(rank.net(eighths(step, dist.get_rank())))
        rank.optimizer.step()
    (state,) = rank.local.state_dict().values()
    owed = state["exchange"]["push"]["weight"]["residual"].double()
    for piece in state["exchange"]["pull"].values():
        owed += dist.get_world_size() * piece["residual"].double()
    reached = state["local"]["global"]["weight"]
    assert isinstance(reached, Tensor)
    applied = (first - reached).flatten().double()
    return given, applied, owed


@pytest.mark.parametrize("name", ["1 bit", "top-k"])
def test_C1_all_that_was_changed_is_applied_or_owed(name: str) -> None:
    found = run(owed_and_given, RECIPES[name], ranks=2)
    given, owed = (torch.stack([rank[i] for rank in found]).mean(0) for i in (0, 2))
    assert float(owed.abs().max()) > 0.0
    torch.testing.assert_close(found[0][1] + owed, given, rtol=0, atol=1e-4)


def normed() -> dict[str, Any]:
    rank = Rank(tw.local_average(tw.Float32()), net=Normed, every=5)
    frozen = rank.net.frozen.weight.detach().clone()
    rank.train(range(5))
    alone = rank.net.norm.running_mean.clone()
    again = rank.train(range(5, 8))
    own = {name: x.clone() for name, x in rank.net.state_dict().items()}
    with rank.local.global_weights():
        shared = {name: x.clone() for name, x in rank.net.state_dict().items()}
    return {
        "mean": alone,
        "unchanged": torch.equal(frozen, rank.net.frozen.weight),
        "own again": all(torch.equal(own[n], x) for n, x in rank.net.state_dict().items()),
        "shared": shared,
        "differs": again != [x.numpy().tobytes() for x in shared.values()],
        "counted": int(rank.net.norm.num_batches_tracked),
    }


def test_buffers_are_averaged_and_what_is_not_trained_stays() -> None:
    found = run(normed, ranks=2)
    assert torch.equal(found[0]["mean"], found[1]["mean"])
    for rank in found:
        assert rank["unchanged"]
        assert rank["own again"]
        assert rank["counted"] == 8
    for name, x in found[0]["shared"].items():
        assert torch.equal(x, found[1]["shared"][name]), name


def in_sixteen_bits() -> tuple[list[bytes], float]:
    net = network().bfloat16()
    rank = Rank(tw.local_average(tw.Float32()), net=lambda: net, every=2, optimizer=plain_sgd)
    before = {name: x.clone() for name, x in rank.local._weights.tensors.items()}
    for group in rank.optimizer.param_groups:
        group["lr"] = 0.0
    rank.train(range(6))
    drift = max(
        float((x.detach() - before[name]).abs().max().detach())
        for name, x in rank.local._weights.tensors.items()
    )
    return weights(net), drift


def test_weights_of_16_bits_do_not_drift_where_nothing_is_learned() -> None:
    for _, drift in run(in_sixteen_bits, ranks=2):
        assert drift == 0.0


def other_number(recipe: tw.Recipe, states: Any) -> tuple[list[bytes], Tensor]:
    rank = Rank(recipe, every=4)
    if states is None:
        rank.train(range(6))
        return rank.local.state_dict(), torch.empty(0)  # type: ignore[return-value]
    rank.local.load_state_dicts(states)
    assert rank.local.steps == 6
    first = torch.cat([p.detach().flatten() for p in rank.net.parameters()])
    rank.train(range(6, 10))
    rank.local.synchronize()
    return weights(rank.net), first


def test_a_run_goes_on_with_another_number_of_ranks() -> None:
    recipe = RECIPES["1 bit, diloco"]
    states = [state for state, _ in run(other_number, recipe, None, ranks=3)]
    found = run(other_number, recipe, states, ranks=2)
    assert found[0][0] == found[1][0]
    locals_ = [next(iter(state.values()))["local"]["local"] for state in states]
    mean = torch.cat([torch.stack([x[n] for x in locals_]).mean(0).flatten() for n in locals_[0]])
    torch.testing.assert_close(found[0][1], mean)


def statistics() -> tuple[str, float]:
    rank = Rank(None, every=4)
    rank.train(range(16))
    stats = rank.local.stats()
    return str(stats), stats.ratio


def test_statistics_compare_with_gradients_of_every_step() -> None:
    for text, ratio in run(statistics, ranks=2):
        assert "16, 4 exchanges" in text
        assert "local_average()" in text
        assert ratio > 60.0


def misused() -> list[str]:
    net = network()
    optimizer = adamw(net)

    def local(**options: Any) -> Callable[[], object]:
        return lambda: tw.local_steps(options.pop("net", net), optimizer, **options)

    found = [
        refused(local(recipe=tw.dgc(0.1))),
        refused(local(recipe=tw.adam())),
        refused(local(recipe=tw.doublesqueeze(clip_norm=1.0))),
        refused(local(net=DistributedDataParallel(net))),
        refused(local(every=4, delay=3, fragments=2)),
        refused(local(every="auto")),
        refused(local(recipe=tw.local_average(tw.OneBit()), net=Normed())),
        refused(lambda: tw.compress_module(net, tw.diloco(), optimizer=optimizer)),
    ]
    rank = Rank(None, every=4)
    with rank.local.global_weights():
        found.append(refused(rank.local.synchronize))
        found.append(refused(lambda: rank.train(range(1))))
    return found


def test_what_does_not_fit_is_refused_with_what_to_use() -> None:
    expected = [
        "use tw.local_average() or tw.diloco()",
        "use tw.local_average() or tw.diloco()",
        "clip gradients before optimizer.step()",
        "give the network itself, model.module",
        "use delay=2 or less",
        "ranks of a process group exchange after the same number of steps",
        "the optimizer has a parameter",
        "for local steps",
        "synchronize() within global_weights()",
        "an optimizer step within global_weights()",
    ]
    for found in run(misused, ranks=2):
        assert len(found) == len(expected)
        for text, words in zip(found, expected, strict=True):
            assert words in text


def diverging() -> str:
    rank = Rank(None, every=2)
    if dist.get_rank() == 1:
        with torch.no_grad():
            next(rank.net.parameters())[0, 0] = torch.nan
    try:
        rank.train(range(2))
    except tw.NonFiniteError as error:
        return str(error)
    return "no error"


def test_a_rank_that_diverged_stops_all() -> None:
    for text in run(diverging, ranks=2, keep=False):
        assert "0.weight is not finite" in text
