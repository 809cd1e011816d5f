"""Every registered codec, in every setting with a branch of its own, keeps every law."""

from __future__ import annotations

import pytest
import torch

import thinwire as tw
from tests.cases import CODECS
from thinwire.codec.base import Codec
from thinwire.testing import check_codec


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_laws(codec: Codec) -> None:
    check_codec(codec)


def test_no_registered_codec_escapes_the_laws() -> None:
    assert {type(codec) for codec in CODECS} == set(tw.codecs().values())


@pytest.mark.parametrize("codec", [tw.OneBit(), tw.TopK(1.0), tw.Nonzero(), tw.Dither(4)], ids=repr)
@pytest.mark.parametrize("poison", [float("inf"), float("-inf"), float("nan")])
def test_one_element_that_is_not_finite_is_refused(codec: Codec, poison: float) -> None:
    x = torch.ones(1000)
    x[999] = poison
    with pytest.raises(tw.NonFiniteError, match=codec.name):
        codec.encode(x, seed=0)


def test_randomk_refuses_a_chosen_element_that_is_not_finite() -> None:
    with pytest.raises(tw.NonFiniteError, match="randomk"):
        tw.RandomK(1.0).encode(torch.tensor([1.0, float("nan")]), seed=0)


def test_float32_carries_everything() -> None:
    x = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-45])
    out = torch.zeros(5)
    tw.Float32.decode(tw.Float32().encode(x, seed=0), out)
    assert torch.equal(out.view(torch.int32), x.view(torch.int32))


@pytest.mark.parametrize(
    ("codec", "largest"), [(tw.Float16(), 65504.0), (tw.BFloat16(), 3.3895313892515355e38)]
)
def test_halves_that_would_overflow_become_the_largest(codec: Codec, largest: float) -> None:
    out = torch.zeros(2)
    codec.decode(codec.encode(torch.tensor([3.4e38, -3.4e38]), seed=0), out)
    assert out.tolist() == [largest, -largest]


@pytest.mark.parametrize("ratio", [0.001, 0.07, 0.5, 1.0])
@pytest.mark.parametrize("numel", [0, 1, 10, 1000])
def test_topk_keeps_at_least_its_ratio_and_never_more_than_all(ratio: float, numel: int) -> None:
    kept = tw.TopK(ratio).kept(numel)
    assert ratio * numel <= kept <= min(numel, ratio * numel + 1)


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_lowest_number_always_gets_its_own_level(bits: int) -> None:
    """Whatever chance says: in float32 -63 plus nearly 1 is -62, once in half a million times."""
    x = torch.full((1 << 22,), -1.0)
    found = torch.empty_like(x)
    tw.Dither(bits).decode(tw.Dither(bits).encode(x, seed=1), found)
    assert torch.equal(found, x)
