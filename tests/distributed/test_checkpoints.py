"""State survives: per rank, in torch.distributed.checkpoint, and with other numbers of ranks."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save

import thinwire as tw
from tests.distributed.handles import handle, load_distributed, owed, save_distributed
from tests.distributed.launch import run
from tests.distributed.training import RECIPES, Trainer, exchange_state, momentum_sgd

STATEFUL = ["1 bit", "dgc", "top-k"]


def through_a_file(state: Any) -> Any:
    """What a checkpoint would give back: plain types only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resume(name: str, at: int, options: dict[str, Any]) -> bool:
    whole, first, second = (
        Trainer(RECIPES[name], optimizer=momentum_sgd if name == "dgc" else plain, **options)
        for plain in [lambda net: torch.optim.SGD(net.parameters(), lr=0.05)] * 3
    )
    first.train(range(at))
    second.net.load_state_dict(through_a_file(first.net.state_dict()))
    second.optimizer.load_state_dict(through_a_file(first.optimizer.state_dict()))
    handle(second).load_state_dict(through_a_file(handle(first).state_dict()))
    return whole.train(range(8)) == second.train(range(at, 8))


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("name", STATEFUL)
def test_S2_resuming_at_any_step_is_bit_identical(name: str, at: int, exchange: str) -> None:
    assert run(resume, name, at, {"exchange": exchange}, ranks=3) == [True] * 3


@pytest.mark.parametrize("name", STATEFUL)
def test_S2_resuming_without_ddp_is_bit_identical(name: str) -> None:
    assert run(resume, name, 3, {"module": True}, ranks=2) == [True] * 2


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", STATEFUL)
def test_S2_resuming_is_bit_identical_with_any_number_of_ranks(name: str, ranks: int) -> None:
    assert run(resume, name, 3, {}, ranks=ranks) == [True] * ranks


def residuals_of_ranks(name: str) -> bytes:
    trainer = Trainer(RECIPES[name])
    trainer.train(range(3))
    return exchange_state(trainer.compression)["push"]["2.weight"]["residual"].numpy().tobytes()


def test_P5_residuals_differ_between_ranks() -> None:
    first, second = run(residuals_of_ranks, "1 bit", ranks=2)
    assert first != second


def load_anothers_state() -> str:
    trainer, other = Trainer(RECIPES["1 bit"]), 1 - dist.get_rank()
    state = handle(trainer).state_dict()
    (own,) = state.values()
    try:
        handle(trainer).load_state_dict({f"rank {other} of 2": own})
    except tw.ConfigError as error:
        return str(error)
    return "no error"


def test_P5_the_state_of_another_rank_is_refused() -> None:
    first, second = run(load_anothers_state, ranks=2)
    assert "state of rank 1 of 2, but here is rank 0 of 2" in first
    assert "state of rank 0 of 2, but here is rank 1 of 2" in second


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (3, 2), (1, 3), (2, 2)])
@pytest.mark.parametrize("name", STATEFUL)
def test_S8_another_number_of_ranks_owes_the_same_mean(
    name: str, before: int, after: int, exchange: str, tmp_path: Path
) -> None:
    options = {"exchange": exchange}
    old = run(save_distributed, name, str(tmp_path), options, ranks=before)
    new = run(load_distributed, name, str(tmp_path), options, ranks=after)
    for parameter, buffers in old[0]["push"].items():
        for key in buffers:
            was, now = owed(old, parameter, key), owed(new, parameter, key)
            assert bool(was.any()) or parameter.endswith("bias")
            torch.testing.assert_close(now, was, rtol=1e-6, atol=1e-8)
    if before == after:
        for a, b in zip(old, new, strict=True):
            assert all(
                torch.equal(buffer, b["push"][name][key])
                for name, state in a["push"].items()
                for key, buffer in state.items()
            )


OTHER_LAYOUTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"hierarchy": "host"}, {}),
    ({}, {"hierarchy": "host"}),
    ({}, {"exchange": "allgather"}),
]


@pytest.mark.parametrize(("before", "after"), OTHER_LAYOUTS, ids=str)
def test_S8_another_exchange_of_as_many_ranks_owes_the_same_mean(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    env = {"LOCAL_WORLD_SIZE": "2"}
    old = run(save_distributed, "1 bit", str(tmp_path), before, ranks=4, env=env)
    new = run(load_distributed, "1 bit", str(tmp_path), after, ranks=4, env=env)
    for parameter in old[0]["push"]:
        was, now = (owed(states, parameter, "residual") for states in (old, new))
        torch.testing.assert_close(now, was, rtol=1e-6, atol=1e-8)


def load_in_another_layout() -> str:
    trainer, other = Trainer(RECIPES["1 bit"]), Trainer(RECIPES["1 bit"], exchange="allgather")
    try:
        handle(other).load_state_dict(handle(trainer).state_dict())
    except tw.ConfigError as error:
        return str(error)
    return "no error"


def test_one_ranks_state_of_another_exchange_is_refused() -> None:
    assert all("another exchange" in error for error in run(load_in_another_layout, ranks=2))


def stateless(folder: str) -> int:
    trainer = Trainer(tw.dense())
    if dist.get_world_size() == 2:
        trainer.train(range(3))
        save({"compression": handle(trainer)}, checkpoint_id=folder)
    else:
        handle(trainer).load_distributed(folder)
    return handle(trainer).steps


def test_a_recipe_without_state_may_change_the_number_of_ranks(tmp_path: Path) -> None:
    assert run(stateless, str(tmp_path), ranks=2) == [3, 3]
    assert run(stateless, str(tmp_path), ranks=3) == [3, 3, 3]


def train_on(name: str, folder: str) -> list[bytes]:
    trainer = Trainer(RECIPES[name])
    handle(trainer).load_distributed(folder)
    return trainer.train(range(4, 7))


def test_training_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    run(save_distributed, "dgc", str(tmp_path), {}, ranks=4)
    first, second = run(train_on, "dgc", str(tmp_path), ranks=2)
    assert first == second


def load_some() -> str:
    trainer = Trainer(RECIPES["1 bit"])
    (own,) = handle(trainer).state_dict().values()
    try:
        handle(trainer).load_state_dicts([{"rank 0 of 3": {**own, "workers": 3}}])
    except tw.ConfigError as error:
        return str(error)
    return "no error"


def test_states_of_some_ranks_only_are_refused() -> None:
    assert "those of all ranks" in run(load_some, ranks=1)[0]
