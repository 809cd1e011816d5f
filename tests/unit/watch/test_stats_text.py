"""``print(stats)`` is a short table that a person can read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thinwire.watch.stats import ClientStats, Stats, TensorStats
from thinwire.watch.stats_text import byte_text, fewer, time_text

TENSORS = {f"layer.{n}.weight": TensorStats(4000 * n, 125 * n, 250 * n, 1.0) for n in range(1, 161)}

STATS = Stats(
    recipe="doublesqueeze(OneBit())",
    steps=100,
    overflowed_steps=0,
    dense_nbytes=51_520_000,
    pushed_nbytes=1_610_000,
    pulled_nbytes=3_220_000,
    sent_nbytes=1_700_000,
    received_nbytes=3_300_000,
    encode_seconds=0.12,
    serve_seconds=0.03,
    decode_seconds=2.0,
    exchange_seconds=8.0,
    exposed_seconds=2.0,
    residual_ratio=3.25,
    tensors=TENSORS,
)

CLIENT = ClientStats(
    recipe="doublesqueeze(OneBit())",
    steps=100,
    version=103,
    dense_nbytes=51_520_000,
    pushed_nbytes=1_610_000,
    pulled_nbytes=3_220_000,
    sent_nbytes=1_700_000,
    received_nbytes=3_300_000,
    refused_pieces=2,
    overflowed_pieces=1,
    rejoined=0,
    encode_seconds=0.12,
    residual_ratio=3.25,
    tensors=TENSORS,
    dense_pulled_nbytes=103_040_000,
)


def test_the_statistics_of_a_rank_are_a_short_table() -> None:
    assert str(STATS).splitlines() == [
        "recipe     doublesqueeze(OneBit())",
        "steps      100",
        "dense      51.5 MB each way",
        "pushed     1.6 MB, 32.0x fewer",
        "pulled     3.2 MB, 16.0x fewer",
        "network    1.7 MB sent, 3.3 MB received, with frames",
        "work       encode 120.0 ms, serve 30.0 ms, decode 2.0 s",
        "exchange   8.0 s, 75 % of it hidden behind backward",
        "residual   3.25 times the newest gradient",
        "tensors    160; most bytes:",
        "  layer.160.weight  20.0 kB pushed, 32.0x fewer; 40.0 kB pulled",
        "  layer.159.weight  19.9 kB pushed, 32.0x fewer; 39.8 kB pulled",
        "  layer.158.weight  19.8 kB pushed, 32.0x fewer; 39.5 kB pulled",
        "  layer.157.weight  19.6 kB pushed, 32.0x fewer; 39.2 kB pulled",
        "  layer.156.weight  19.5 kB pushed, 32.0x fewer; 39.0 kB pulled",
    ]


def test_the_statistics_of_a_worker_are_a_short_table() -> None:
    assert str(CLIENT).splitlines()[:9] == [
        "recipe     doublesqueeze(OneBit())",
        "steps      100, at version 103",
        "dense      51.5 MB of gradients, 103.0 MB of updates",
        "pushed     1.6 MB, 32.0x fewer",
        "pulled     3.2 MB, 32.0x fewer",
        "network    1.7 MB sent, 3.3 MB received, with frames; reconnected 0 times",
        "work       encode 120.0 ms",
        "residual   3.25 times the newest gradient",
        "left out   2 pieces refused as too old, 1 with an inf or nan",
    ]


@pytest.mark.parametrize("stats", [STATS, CLIENT], ids=["rank", "worker"])
def test_a_table_fits_into_a_terminal_whatever_the_names(stats: Stats | ClientStats) -> None:
    long = {f"module.encoder.{'block.' * 30}{n}.weight": TENSORS["layer.7.weight"] for n in "abc"}
    lines = str(replace(stats, tensors=long)).splitlines()
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 100
    assert lines[-1].split()[0].endswith("block.c.weight")  # its end says which one it is


def test_nothing_happened_yet_is_a_table_too() -> None:
    nothing = replace(
        STATS,
        steps=0,
        dense_nbytes=0,
        pushed_nbytes=0,
        pulled_nbytes=0,
        exchange_seconds=0.0,
        residual_ratio=None,
        tensors={},
    )
    lines = str(nothing).splitlines()
    assert lines[3] == "pushed     0 B"
    assert lines[7] == "exchange   0.0 ms"
    assert lines[8:] == ["residual   none kept"]


def test_what_decaying_residuals_forget_is_named() -> None:
    for stats in (STATS, CLIENT):
        forgetful = str(replace(stats, forgotten_ratio=0.1234))
        assert "3.25 times the newest gradient, a step forgets 0.123 times one" in forgetful


def test_steps_that_overflowed_are_named() -> None:
    assert "steps      100, 3 of them skipped" in str(replace(STATS, overflowed_steps=3))


def test_repr_still_has_every_field() -> None:
    for field in ("steps=100", "tensors={'layer.1.weight': TensorStats("):
        assert field in repr(STATS)
        assert field in repr(CLIENT)


def test_updates_of_others_do_not_spoil_the_ratio_of_a_worker() -> None:
    assert CLIENT.ratio == pytest.approx((51.52 + 103.04) / (1.61 + 3.22))


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (12.4, "12 B"),
        (2.5e9, "2.5 GB"),
        (3e15, "3,000.0 TB"),
    ],
)
def test_bytes_have_the_unit_that_keeps_them_short(nbytes: float, text: str) -> None:
    assert byte_text(nbytes) == text


@pytest.mark.parametrize(
    ("dense", "sent", "text"),
    [
        (314, 10, "31.4x fewer"),
        (1000, 1001, "as dense"),
        (1000, 990, "as dense"),
        (100, 200, "2.0x more"),
        (100, 0, ""),
        (0, 100, ""),
    ],
)
def test_a_ratio_says_fewer_or_more(dense: int, sent: int, text: str) -> None:
    assert fewer(dense, sent) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0.0 ms"), (0.0123, "12.3 ms"), (1.0, "1.0 s"), (5000, "5,000.0 s")]
)
def test_times_have_a_unit(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
