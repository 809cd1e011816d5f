"""States that cannot be loaded: refused in a sentence, at once, and nothing of them is taken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed.launch import run
from tests.distributed.training import RECIPES, Trainer
from thinwire.hooks.handle import Compression

States = list[Any]
Damage = Callable[[States], States]


def last(states: States) -> dict[str, Any]:
    """The state of the last rank, without its key."""
    (own,) = states[-1].values()
    assert isinstance(own, dict)
    return own


def first_buffers(states: States, section: str) -> dict[str, Any]:
    buffers = next(iter(last(states)["exchange"][section].values()))
    assert isinstance(buffers, dict)
    return buffers


def without(field: str) -> Damage:
    def damage(states: States) -> States:
        del last(states)[field]
        return states

    return damage


def with_other(field: str, value: object) -> Damage:
    def damage(states: States) -> States:
        last(states)[field] = value
        return states

    return damage


def with_residual(section: str, change: Callable[[torch.Tensor], object]) -> Damage:
    def damage(states: States) -> States:
        buffers = first_buffers(states, section)
        buffers["residual"] = change(buffers["residual"])
        return states

    return damage


def with_a_buffer_more(states: States) -> States:
    buffers = first_buffers(states, "pull")
    buffers["velocity"] = buffers["residual"].clone()
    return states


def with_an_unknown_name(states: States) -> States:
    last(states)["exchange"]["push"]["nowhere"] = {"residual": torch.zeros(3)}
    return states


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no steps": (without("steps"), "'steps'"),
    "no rank": (without("rank"), "'rank'"),
    "no workers": (without("workers"), "'workers'"),
    "no layout": (without("layout"), "'layout'"),
    "steps as text": (with_other("steps", "4"), "'steps'"),
    "steps below 0": (with_other("steps", -1), "'steps'"),
    "a true rank": (with_other("rank", True), "'rank'"),
    "rank of no worker": (with_other("rank", 7), "'rank'"),
    "half a worker": (with_other("workers", 2.5), "'workers'"),
    "layout is a number": (with_other("layout", 3), "'layout'"),
    "exchange is a list": (with_other("exchange", [1]), "'exchange'"),
    "push is a number": (with_other("exchange", {"push": 1}), "push"),
    "a parameter is a tensor": (
        with_other("exchange", {"push": {"0.weight": torch.zeros(6000)}}),
        "0.weight",
    ),
    "residual as list": (with_residual("push", lambda x: x.tolist()), "residual"),
    "float64 residual": (with_residual("push", lambda x: x.double()), "float64"),
    "short residual": (with_residual("push", lambda x: x[:-1]), "elements"),
    "float64 pull": (with_residual("pull", lambda x: x.double()), "float64"),
    "short pull": (with_residual("pull", lambda x: x[:-1]), "elements"),
    "scalar residual": (with_residual("push", lambda x: x[0].clone()), "elements"),
    "a buffer more": (with_a_buffer_more, "velocity"),
    "an unknown name": (with_an_unknown_name, "nowhere"),
    "no dict": (lambda states: [*states[:-1], "state"], "str"),
    "no state": (lambda states: [*states[:-1], None], "NoneType"),
    "a rank is no dict": (lambda states: [*states[:-1], {"rank 1 of 2": 5}], "int"),
}


def states_of_all() -> States:
    trainer = Trainer(RECIPES["1 bit"])
    trainer.train(range(3))
    return [state_of(trainer)]


def state_of(trainer: Trainer) -> Any:
    return copy.deepcopy(handle(trainer).state_dict())


def handle(trainer: Trainer) -> Compression:
    assert trainer.compression is not None
    return trainer.compression


def what_loading_says(states: States, options: dict[str, Any]) -> dict[str, str]:
    """For each damage; "half loaded" if something was taken of it."""
    trainer = Trainer(RECIPES["1 bit"], **options)
    trainer.train(range(2))
    before, found = state_of(trainer), {}
    for name, (damage, _) in DAMAGES.items():
        damaged = damage(copy.deepcopy(states))
        found[name] = what_is_raised(lambda: handle(trainer).load_state_dicts(damaged))  # noqa: B023
        if not same(before, state_of(trainer)):
            found[name] = f"half loaded: {found[name]}"
            handle(trainer).load_state_dict(before)
    return found


def what_is_raised(load: Callable[[], object]) -> str:
    try:
        load()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


def damaged_states_are_refused(after: int, options: dict[str, Any]) -> None:
    saved = [state for (state,) in run(states_of_all, ranks=2)]
    for found in run(what_loading_says, saved, options, ranks=after):
        assert not_refused(found) == {}


def not_refused(found: dict[str, str]) -> dict[str, str]:
    """The message for damages that no sentence names."""
    return {
        name: found[name]
        for name, (_, part) in DAMAGES.items()
        if not (found[name].startswith("ConfigError: ") and part in found[name])
    }


@pytest.mark.parametrize("options", [{}, {"exchange": "allgather"}, {"module": True}], ids=str)
@pytest.mark.parametrize("after", [1, 3])
def test_damaged_states_of_another_number_of_ranks_are_refused_whole(
    after: int, options: dict[str, Any]
) -> None:
    damaged_states_are_refused(after, options)


def test_damaged_states_of_the_same_ranks_are_refused_whole() -> None:
    """Also by the rank that does not need the damaged one: all ranks must do the same."""
    damaged_states_are_refused(2, {})


def what_loading_ones_own_says(states: States) -> dict[str, str]:
    """Each rank takes the damaged state for its own."""
    trainer = Trainer(RECIPES["1 bit"])
    before, found = state_of(trainer), {}
    key = f"rank {dist.get_rank()} of 2"
    for name, (damage, _) in DAMAGES.items():
        damaged = damage(copy.deepcopy([states[dist.get_rank()]]))[-1]
        if isinstance(damaged, dict):
            damaged = {key: next(iter(damaged.values()))}
        found[name] = what_is_raised(lambda: handle(trainer).load_state_dict(damaged))  # noqa: B023
        if not same(before, state_of(trainer)):
            found[name] = f"half loaded: {found[name]}"
            handle(trainer).load_state_dict(before)
    return found


def test_a_damaged_state_of_one_rank_is_refused_whole() -> None:
    saved = [state for (state,) in run(states_of_all, ranks=2)]
    for found in run(what_loading_ones_own_says, saved, ranks=2):
        assert not_refused(found) == {}


def load_what_is_no_list() -> list[str]:
    compression = handle(Trainer(RECIPES["1 bit"]))
    state: Any = compression.state_dict()
    given: list[Any] = [state, None, "states"]
    return [what_is_raised(lambda: compression.load_state_dicts(one)) for one in given]  # noqa: B023


def test_states_must_be_a_list() -> None:
    (texts,) = run(load_what_is_no_list, ranks=1)
    for text, found in zip(texts, ("dict", "NoneType", "str"), strict=True):
        assert text.startswith(f"ConfigError: load_state_dicts: a {found}, expected a list")
