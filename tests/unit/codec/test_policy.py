"""codec/policy.py: which codec a tensor gets."""

from __future__ import annotations

import pytest

import thinwire as tw
from thinwire.codec.base import Codec
from thinwire.codec.policy import Always, Policy, as_policy, by_row
from thinwire.gradient.pieces import Key

SMALL, DENSE, OTHER = tw.Float16(), tw.Float32(), tw.OneBit()


def chosen(policy: Policy, shape: tuple[int, ...], *, name: str = "w", workers: int = 4) -> Codec:
    return policy.choose(tw.Key(name, shape), step=0, workers=workers)


def test_a_codec_is_a_policy_that_always_chooses_it() -> None:
    assert as_policy(OTHER) == Always(OTHER)
    policy = tw.vectors_as(SMALL, otherwise=OTHER)
    assert as_policy(policy) is policy


@pytest.mark.parametrize(("numel", "codec"), [(0, SMALL), (99, SMALL), (100, OTHER), (101, OTHER)])
def test_small_as_counts_elements(numel: int, codec: Codec) -> None:
    assert chosen(tw.small_as(SMALL, below=100, otherwise=OTHER), (numel,)) == codec


@pytest.mark.parametrize(
    ("shape", "codec"), [((), SMALL), ((7,), SMALL), ((7, 1), OTHER), ((2, 3, 4), OTHER)]
)
def test_vectors_as_counts_dimensions(shape: tuple[int, ...], codec: Codec) -> None:
    assert chosen(tw.vectors_as(SMALL, otherwise=OTHER), shape) == codec


def test_by_name_takes_the_first_that_matches() -> None:
    policy = tw.by_name({"*.bias": SMALL, "layer1.*": DENSE, "*": tw.TopK(0.1)}, otherwise=OTHER)
    assert chosen(policy, (8,), name="layer1.bias") == SMALL
    assert chosen(policy, (8,), name="layer1.weight") == DENSE
    assert chosen(policy, (8,), name="layer2.weight") == tw.TopK(0.1)
    assert chosen(tw.by_name({"a*": SMALL}, otherwise=OTHER), (8,), name="A1") == OTHER


def test_policies_nest() -> None:
    inner = tw.small_as(SMALL, below=10, otherwise=OTHER)
    policy = tw.by_name({"head.*": inner}, otherwise=tw.vectors_as(DENSE, otherwise=inner))
    assert chosen(policy, (9,), name="head.bias") == SMALL
    assert chosen(policy, (9,), name="body.bias") == DENSE
    assert chosen(policy, (9, 9), name="body.weight") == OTHER


@pytest.mark.parametrize(
    ("codec", "cheaper"),
    [(tw.TopK(1.0), False), (tw.TopK(0.95), False), (tw.TopK(0.001), True), (tw.OneBit(), True)],
)
def test_dense_is_chosen_where_it_moves_fewer_bytes(codec: Codec, cheaper: bool) -> None:
    policy = tw.unless_dense_is_cheaper(codec)
    assert chosen(policy, (1000, 10)) == (codec if cheaper else DENSE)


@pytest.mark.parametrize("workers", [2, 5, 6, 64, 10_000])
def test_allgather_brings_the_payloads_of_all(workers: int) -> None:
    """Sparse is dearer when the payloads of all workers exceed 8 bytes per element (1.5)."""
    codec, numel = tw.TopK(0.25), 10_000
    policy = tw.unless_dense_is_cheaper(codec, exchange="allgather")
    dense = workers * codec.max_nbytes(numel) >= 8 * numel
    assert chosen(policy, (numel,), workers=workers) == (DENSE if dense else codec)
    assert (workers >= 8) <= dense


def test_asked_twice_a_policy_answers_the_same() -> None:
    policy = tw.unless_dense_is_cheaper(tw.warmup(tw.TopK(0.01), steps=100))
    key = tw.Key("w", (100, 100))
    for step in (0, 60, 99, 100):
        answers = {policy.choose(key, step=step, workers=4) for _ in range(3)}
        assert len(answers) == 1


def test_policies_are_values() -> None:
    one = tw.by_name({"a": SMALL}, otherwise=tw.small_as(SMALL, below=9, otherwise=OTHER))
    two = tw.by_name({"a": SMALL}, otherwise=tw.small_as(SMALL, below=9, otherwise=OTHER))
    assert one == two
    assert hash(one) == hash(two)


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((10_000, 64), 64),  # embeddings: a row
        ((50_257, 100), 128),  # in whole runs of 64
        ((100, 128), 256),  # short rows
        ((64, 32, 3, 3), 8192),  # small, rows of 288
        ((10, 3136), 8192),
        ((512, 512), 1024),  # not small
    ],
)
def test_elements_that_are_alike_share_a_scale(shape: tuple[int, ...], block: int) -> None:
    key = Key("weight", shape)
    some, plain = by_row(tw.OneBit(block=8192, stretch=1.5), short=256), by_row(tw.OneBit())
    assert some.choose(key, step=0, workers=2) == tw.OneBit(block=block, stretch=1.5)
    expected = 1024 if block in (256, 8192) else block
    assert plain.choose(key, step=0, workers=2) == tw.OneBit(block=expected)


@pytest.mark.parametrize(("shape", "stretch"), [((10_000, 64), 1.0), ((512, 512), 1.5)])
def test_rows_of_embeddings_may_have_a_codec_of_their_own(
    shape: tuple[int, ...], stretch: float
) -> None:
    policy = by_row(tw.OneBit(stretch=1.5), rows=tw.OneBit())
    chosen = policy.choose(Key("weight", shape), step=0, workers=2)
    assert isinstance(chosen, tw.OneBit)
    assert chosen.stretch == stretch
