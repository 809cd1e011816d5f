"""codec/registry.py: codecs by name and by wire id."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest
import torch

import thinwire as tw
from thinwire.codec import registry
from thinwire.codec.base import PRIVATE_WIRE_IDS


def test_ours_are_all_there_under_the_names_they_give_themselves() -> None:
    names = "bfloat16 chunktopk dither float16 float32 nonzero onebit randomk topk"
    assert sorted(tw.codecs()) == names.split()
    assert all(cls.name == name for name, cls in tw.codecs().items())


def test_wire_ids_are_what_they_always_were() -> None:
    """Frames in old logs carry these numbers: never change one, never use one again."""
    assert {cls.wire_id: name for name, cls in tw.codecs().items()} == {
        1: "float32",
        2: "float16",
        3: "bfloat16",
        4: "onebit",
        5: "topk",
        6: "nonzero",
        7: "randomk",
        8: "dither",
        9: "chunktopk",
    }
    assert not {cls.wire_id for cls in tw.codecs().values()} & set(PRIVATE_WIRE_IDS)


def test_a_codec_is_built_by_its_name() -> None:
    assert tw.make_codec("topk", ratio=0.001) == tw.TopK(0.001)
    assert tw.make_codec("onebit", scale="l2", block=64) == tw.OneBit("l2", 64)
    assert tw.make_codec("float32") == tw.Float32()


def test_an_unknown_name_says_which_was_meant() -> None:
    with pytest.raises(tw.UnknownCodecError, match="no codec is named 'topp'; did you mean 'topk'"):
        tw.make_codec("topp")


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(tw.UnknownCodecError) as caught:
        tw.make_codec("zstandard")
    assert str(caught.value) == (
        "no codec is named 'zstandard'. Known codecs: "
        "bfloat16, chunktopk, dither, float16, float32, nonzero, onebit, randomk, topk"
    )


def test_wrong_settings_name_the_codec() -> None:
    with pytest.raises(tw.ConfigError, match=r"codec 'topk': .*ratios"):
        tw.make_codec("topk", ratios=0.1)
    with pytest.raises(tw.ConfigError, match=r"codec 'topk': .*ratio"):
        tw.make_codec("topk")
    with pytest.raises(tw.ConfigError, match="TopK: ratio"):
        tw.make_codec("topk", ratio=2.0)


def test_the_list_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        tw.codecs()["mine"] = tw.OneBit  # type: ignore[index]  # the point


@pytest.mark.parametrize("wire_id", [0, 10, 0x8000, 0xFFFF])
def test_an_unknown_wire_id_is_refused(wire_id: int) -> None:
    with pytest.raises(tw.UnknownCodecError, match=f"wire id {wire_id}"):
        registry.decode(wire_id, b"", torch.zeros(0))


def test_errors_of_readers_name_the_codec_and_the_size() -> None:
    for name in set(tw.codecs()) - {"float32"}:
        with pytest.raises(tw.CorruptPayloadError, match=rf"^{name}: .*\b9\b.* elements"):
            registry.decode(tw.codecs()[name].wire_id, bytes(13), torch.zeros(9))


class Points:
    """Stands in for what is installed, since installing takes seconds; test_plugin.py does it."""

    def __init__(self, *points: tuple[str, str]) -> None:
        self._points = EntryPoints(
            EntryPoint(name, value, registry.GROUP) for name, value in points
        )

    def __call__(self, *, group: str) -> EntryPoints:
        assert group == registry.GROUP
        return self._points


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The registry as if nobody had asked yet."""
    monkeypatch.setattr(registry, "codecs", registry.codecs.__wrapped__)
    return monkeypatch


def test_an_entry_point_under_another_name_is_refused(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(registry, "entry_points", Points(("top", "thinwire.codec.topk:TopK")))
    with pytest.raises(
        tw.ConfigError, match=r"TopK calls itself 'topk' but its entry point .*'top'"
    ):
        registry.codecs()


def test_two_codecs_of_one_name_are_refused(fresh: pytest.MonkeyPatch) -> None:
    """Else a plug-in could silently take the place of another, or of ours."""
    points = Points(
        ("good", "tests.unit.testing.test_codec_laws:Good"),
        ("good", "tests.unit.testing.test_codec_laws:Good"),
    )
    fresh.setattr(registry, "entry_points", points)
    with pytest.raises(tw.ConfigError, match="two codecs are named 'good'"):
        registry.codecs()
