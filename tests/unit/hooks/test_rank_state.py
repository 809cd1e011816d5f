"""Which states of ranks are taken for such, without any process group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from thinwire.errors import ConfigError
from thinwire.exchange.resharding import by_piece, join_pieces, owe_also, reassign
from thinwire.gradient.pieces import Key, cut
from thinwire.hooks.rank_state import RankState, checked_states

SIZES = {"a": 6, "b": 4}


def sizes(key: str, state: RankState) -> Mapping[str, int]:
    return SIZES


def state(**changes: object) -> dict[str, Any]:
    push = {name: {"residual": torch.ones(numel)} for name, numel in SIZES.items()}
    pull = {"a[0:4]": {"residual": torch.ones(4)}, "b": {"residual": torch.ones(4)}}
    exchange = {"push": push, "pull": pull}
    own = {"steps": 3, "rank": 0, "workers": 1, "layout": "x", "exchange": exchange, **changes}
    return {"rank 0 of 1": own}


def test_a_state_is_taken_as_it_is() -> None:
    given = state()
    assert checked_states([given], sizes) == given


@pytest.mark.parametrize("exchange", [{}, {"push": {}}, {"servers": {"version": {"applied": 3}}}])
def test_what_is_empty_may_be_left_out(exchange: Mapping[str, object]) -> None:
    assert checked_states([state(exchange=exchange)], sizes)


def test_exchange_itself_may_be_left_out() -> None:
    given = state()
    del given["rank 0 of 1"]["exchange"]
    assert checked_states([given], sizes) == given


def test_numbers_beside_residuals_may_be_of_another_format() -> None:
    push = {"a": {"residual": torch.ones(6), "rate": torch.ones((), dtype=torch.float64)}}
    assert checked_states([state(exchange={"push": push})], sizes)


@pytest.mark.parametrize("value", [None, 3, 2.0, "1", True, [1], torch.ones(2)], ids=repr)
@pytest.mark.parametrize("where", ["state", "rank", "push", "owed", "buffer"])
def test_anything_else_is_refused_wherever_it_is(where: str, value: object) -> None:
    states: dict[str, object] = {
        "state": value,
        "rank": {"rank 0 of 1": value},
        "push": state(exchange={"push": value}),
        "owed": state(exchange={"push": {"a": value, "b": {"residual": torch.ones(4)}}}),
        "buffer": state(exchange={"push": {"a": {"residual": value}}}),
    }
    with pytest.raises(ConfigError, match=r"expected|has 2 elements"):
        checked_states([states[where]], sizes)


@pytest.mark.parametrize("value", [None, -1, 2.0, "1", True, [1]], ids=repr)
@pytest.mark.parametrize("field", ["steps", "rank", "workers"])
def test_a_field_that_is_no_number_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"rank 0 of 1: '{field}' is .*, expected a whole number"):
        checked_states([state(**{field: value})], sizes)


@pytest.mark.parametrize(
    ("piece", "numel"), [("a", 5), ("a[0:4]", 3), ("b[2:4]", 4), ("b[1:2]", 0)]
)
def test_a_piece_of_another_size_is_named(piece: str, numel: int) -> None:
    pull = {piece: {"residual": torch.ones(numel)}}
    with pytest.raises(ConfigError, match=rf"has {numel} elements"):
        checked_states([state(exchange={"pull": pull})], sizes)


def test_what_is_owed_for_an_unknown_parameter_is_refused() -> None:
    for section, name in (("push", "c"), ("pull", "c"), ("pull", "c[0:3]")):
        owed = {section: {name: {"residual": torch.ones(3)}}}
        with pytest.raises(ConfigError, match="state of c, but no parameter"):
            checked_states([state(exchange=owed)], sizes)


def test_pieces_with_different_buffers_are_not_joined() -> None:
    residual = torch.ones(3)
    pieces = {"a[0:3]": {"residual": residual}, "a[3:6]": {"residual": residual, "rate": residual}}
    with pytest.raises(ConfigError, match="'a' hold different buffers"):
        join_pieces([pieces])


def test_what_servers_owed_with_a_gap_is_refused() -> None:
    joined = join_pieces([{"a[0:3]": {"residual": torch.ones(3)}}])
    with pytest.raises(ConfigError, match="6 elements on one rank and 3 on another"):
        owe_also({"a": {"residual": torch.ones(6)}}, joined)
    with pytest.raises(ConfigError, match="3 elements"):
        by_piece(cut([Key("a", (6,))], most_numel=64), joined)


def test_states_of_different_shapes_are_not_added() -> None:
    states = [{"a": {"residual": torch.ones(numel)}} for numel in (6, 5)]
    with pytest.raises(ConfigError, match="6 elements on one rank and 5 on another"):
        reassign(states, workers=1)
