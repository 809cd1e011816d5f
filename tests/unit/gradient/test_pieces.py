"""Pieces cover every gradient once, and placement is balanced and the same everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

import thinwire as tw
from thinwire.gradient.pieces import ALIGNMENT, Piece, cut, place

SHAPES = st.lists(st.integers(0, 5000).map(lambda n: (n,)), max_size=12)


def keys_of(shapes: list[tuple[int]]) -> list[tw.Key]:
    return [tw.Key(f"p{i}", shape) for i, shape in enumerate(shapes)]


@given(SHAPES, st.integers(ALIGNMENT, 2000))
def test_pieces_cover_every_element_once(shapes: list[tuple[int]], most: int) -> None:
    keys = keys_of(shapes)
    pieces = cut(keys, most_numel=most)
    for key in keys:
        own = [piece for piece in pieces if piece.key == key]
        assert own[0].start == 0
        assert own[-1].stop == key.numel
        assert [piece.start for piece in own[1:]] == [piece.stop for piece in own[:-1]]
        assert all(piece.start % ALIGNMENT == 0 and piece.numel <= most for piece in own)
        assert max(p.numel for p in own) - min(p.numel for p in own) < len(own) * ALIGNMENT
    assert len({piece.name for piece in pieces}) == len(pieces)


def test_a_piece_that_is_all_of_its_gradient_has_its_name() -> None:
    key = tw.Key("fc.weight", (100, 100))
    assert Piece.whole(key).name == "fc.weight"
    first, second = cut([key], most_numel=6000)
    assert (first.name, second.name) == ("fc.weight[0:5056]", "fc.weight[5056:10000]")


@given(SHAPES, st.integers(1, 9))
def test_placement_is_balanced(shapes: list[tuple[int]], owners: int) -> None:
    pieces = cut(keys_of(shapes), most_numel=640)
    placed = place(pieces, owners=owners)
    loads = [0] * owners
    for piece, owner in zip(pieces, placed, strict=True):
        loads[owner] += piece.numel
    largest = max((piece.numel for piece in pieces), default=0)
    assert max(loads) <= sum(loads) / owners + largest
    assert placed == place(pieces, owners=owners)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(tw.ConfigError, match="most_numel must be a whole number from 64, got 10"):
        cut([], most_numel=10)
    with pytest.raises(tw.ConfigError, match="owners must be a whole number from 1, got 0"):
        place([], owners=0)
