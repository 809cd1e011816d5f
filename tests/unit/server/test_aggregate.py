"""Quorum, staleness, exactly once, and the law that nothing is lost."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import thinwire as tw
from tests.cases import laws
from tests.unit.server.aggregates import KEYS, PIECES, RECIPES, Worker, gradient
from thinwire.compressor.compressor import Compressor
from thinwire.compressor.encoded import decoded
from thinwire.gradient.pieces import Piece
from thinwire.recipe import Recipe
from thinwire.server.aggregate import Aggregate
from thinwire.server.settings import Rules
from thinwire.virtual.exchange import VirtualExchange
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.messages import Push, Update


def serve(aggregate: Aggregate, workers: Sequence[Worker]) -> list[Update]:
    updates = []
    for worker in workers:
        step, push = worker.push(aggregate.version)
        updates += aggregate.count(worker.rank, step, push)
    return updates


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_synchronous_is_the_virtual_exchange_whatever_the_order_of_arrival(recipe: Recipe) -> None:
    aggregate = Aggregate(recipe, PIECES, Rules.synchronous(3))
    exchange = VirtualExchange(recipe, KEYS, workers=3, piece_numel=128)
    workers = [Worker(recipe, rank, 3) for rank in range(3)]
    for step in range(5):
        order = [workers[(step + i) % 3] for i in (2, 0, 1)]
        updates = serve(aggregate, order)
        shaped = [
            {key.name: gradient(rank, step)[key.name].view(key.shape) for key in KEYS}
            for rank in range(3)
        ]
        mean = exchange.average(shaped, step=step, learning_rate=0.1).mean
        found = {entry.piece: entry for update in updates for entry in update.entries}
        assert sorted(found) == sorted(PIECES)
        for number, piece in PIECES.items():
            entry = found[number]
            decoded = tw.Encoded(
                entry.encoded.wire_id, entry.encoded.numel, entry.encoded.payload
            ).decode()
            expected = mean[piece.key.name].reshape(-1)[piece.start : piece.stop]
            assert torch.equal(decoded, expected)


@laws
@given(
    order=st.lists(st.integers(0, 3), min_size=8, max_size=40),
    quorum=st.integers(1, 4),
    data=st.data(),
)
def test_I4_nothing_is_lost_in_any_order_with_any_quorum(
    order: list[int], quorum: int, data: st.DataObject
) -> None:
    """Applied updates, what the server and the workers owe, and open pushes: all the gradients."""
    recipe = data.draw(st.sampled_from([RECIPES[0], RECIPES[1], tw.doublesqueeze(tw.Dither(3))]))
    aggregate = Aggregate(recipe, PIECES, Rules(4, quorum, staleness=1000))
    workers = [Worker(recipe, rank, 4) for rank in range(4)]
    known = [-1] * 4
    applied = {number: torch.zeros(p.numel, dtype=torch.float64) for number, p in PIECES.items()}
    for rank in order:
        if aggregate.version == known[rank]:
            continue  # an honest worker waits for a new version
        known[rank] = aggregate.version
        step, push = workers[rank].push(known[rank])
        for update in aggregate.count(rank, step, push):
            for entry in update.entries:
                applied[entry.piece] += tw.Encoded(
                    entry.encoded.wire_id, entry.encoded.numel, entry.encoded.payload
                ).decode()
    for number, piece in PIECES.items():
        total = applied[number] + residual(aggregate.compressor, piece)
        given_ = torch.zeros(piece.numel, dtype=torch.float64)
        for worker in workers:
            total += residual(worker.compressor, piece) / 4
            for step in range(worker.step):
                part = gradient(worker.rank, step)[piece.key.name][piece.start : piece.stop]
                given_ += part.double() / 4
        for one in aggregate.open[number]:
            total += decoded(one.encoded).double() / 4
        torch.testing.assert_close(total, given_, rtol=1e-5, atol=1e-4)


def residual(compressor: Compressor, piece: Piece) -> Tensor:
    state = compressor.state_dict().get(piece.name, {})
    return state["residual"].double() if "residual" in state else torch.zeros(1).double()


def test_a_repeated_push_is_not_counted_again() -> None:
    recipe = RECIPES[0]
    aggregate = Aggregate(recipe, PIECES, Rules(2, 2, 0))
    first, second = Worker(recipe, 0, 2), Worker(recipe, 1, 2)
    step, push = first.push(0)
    assert aggregate.count(0, step, push) == []
    assert aggregate.judge(0, step, push).repeated == tuple(PIECES)
    assert aggregate.count(0, step, push) == []
    assert len(serve(aggregate, [second])) == 1
    assert aggregate.count(0, step, push) == []
    assert aggregate.version == 1


def test_a_stale_push_is_refused_and_changes_nothing() -> None:
    recipe = RECIPES[0]
    aggregate = Aggregate(recipe, PIECES, Rules(2, 1, staleness=1))
    slow, fast = Worker(recipe, 0, 2), Worker(recipe, 1, 2)
    step, push = slow.push(0)
    for _ in range(2):
        serve(aggregate, [fast])
    verdict = aggregate.judge(0, step, push)
    assert verdict.stale == tuple(PIECES)
    assert aggregate.count(0, step, push) == []
    assert aggregate.version == 2
    assert len(serve(aggregate, [slow])) == 1


def test_a_refused_push_that_is_sent_again_later_is_refused_again() -> None:
    """Its worker may not have heard that it was refused, and pushed another one since then."""
    recipe = RECIPES[0]
    aggregate = Aggregate(recipe, PIECES, Rules(2, 1, staleness=1))
    slow, fast = Worker(recipe, 0, 2), Worker(recipe, 1, 2)
    aggregate.count(0, *slow.push(0))
    refused = slow.push(0)
    for _ in range(2):
        serve(aggregate, [fast])
    assert aggregate.judge(0, *refused).stale == tuple(PIECES)
    counted = slow.push(aggregate.version)
    aggregate.count(0, *counted)
    assert aggregate.judge(0, *refused).stale == tuple(PIECES)
    assert aggregate.judge(0, *counted).repeated == tuple(PIECES)


def test_the_same_pushes_give_the_same_updates() -> None:
    """What a restarted server relies on."""
    recipe = RECIPES[1]
    workers = [Worker(recipe, rank, 3) for rank in range(3)]
    first, again = (Aggregate(recipe, PIECES, Rules(3, 2, 9)) for _ in range(2))
    for i in range(12):
        worker = workers[(i * i) % 3]
        step, push = worker.push(first.version)
        if (
            first.counted.get((worker.rank, 0))
            and first.counted[worker.rank, 0].version >= push.version
        ):
            continue
        assert first.count(worker.rank, step, push) == again.count(worker.rank, step, push)


def entry_for(number: int, payload: bytes, codec: int = 1) -> Entry:
    return Entry(number, EncodedBytes(codec, PIECES[number].numel, memoryview(payload)))


@pytest.mark.parametrize(
    ("push", "words"),
    [
        (
            Push(0, 0.0, (Entry(99, EncodedBytes(1, 4, memoryview(bytes(16)))),)),
            "is not served here",
        ),
        (
            Push(0, 0.0, (Entry(0, EncodedBytes(1, 4, memoryview(bytes(16)))),)),
            "elements, but that has",
        ),
        (Push(7, 0.0, (entry_for(0, bytes(4 * PIECES[0].numel)),)), "the newest is 0"),
        (Push(0, 0.0, (entry_for(0, b"short"),)), "nbytes"),
        (Push(0, 0.0, (entry_for(0, bytes(9), codec=4),)), "onebit"),
        (Push(0, 0.0, (entry_for(0, bytes(9), codec=0x7777),)), "no codec"),
    ],
)
def test_what_no_honest_worker_sends_is_refused_before_it_counts(push: Push, words: str) -> None:
    aggregate = Aggregate(RECIPES[0], PIECES, Rules(2, 2, 0))
    with pytest.raises(tw.RemoteProtocolError, match=words):
        aggregate.judge(0, 0, push)
    assert not aggregate.counted


def test_a_second_push_on_the_same_version_goes_back() -> None:
    """It is what the process pushes that takes the place of a lost one."""
    aggregate = Aggregate(RECIPES[0], PIECES, Rules(2, 2, 0))
    worker = Worker(RECIPES[0], 0, 2)
    aggregate.count(0, *worker.push(0))
    assert aggregate.judge(0, *worker.push(0)).stale == tuple(PIECES)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e31])
def test_a_push_that_would_spoil_all_weights_is_refused(value: float) -> None:
    values = torch.zeros(PIECES[0].numel)
    values[7] = value
    aggregate = Aggregate(RECIPES[-1], PIECES, Rules(2, 2, 0))
    with pytest.raises(tw.RemoteProtocolError, match="spoil the weights of all"):
        aggregate.judge(0, 0, Push(0, 0.0, (entry_for(0, values.numpy().tobytes()),)))


@pytest.mark.parametrize("codec", [tw.TopK(0.1), tw.BFloat16(), tw.Nonzero()], ids=repr)
def test_a_version_that_would_not_be_finite_is_thrown_away(codec: tw.TopK) -> None:
    """Each push is, but not their sum."""
    aggregate = Aggregate(tw.doublesqueeze(codec), PIECES, Rules.synchronous(2))
    payload = codec.encode(torch.full((PIECES[0].numel,), 3e38), seed=0)
    updates = []
    for step in range(3):
        for worker in range(2):
            entry = entry_for(0, bytes(payload), codec=codec.wire_id)
            updates += aggregate.count(worker, step, Push(step, 0.1, (entry,)))
    assert aggregate.overflowed > 0
    for update in updates:
        [entry] = update.entries
        assert (
            tw.Encoded(entry.encoded.wire_id, entry.encoded.numel, entry.encoded.payload)
            .decode()
            .isfinite()
            .all()
        )


@pytest.mark.parametrize("codec", [tw.TopK(0.1), tw.OneBit(), tw.Dither(4)], ids=repr)
@pytest.mark.parametrize("rates", [(1e300, 1e-300), (1e308, 5e-324)])
def test_absurd_learning_rates_spoil_nothing(codec: tw.TopK, rates: tuple[float, float]) -> None:
    feedback = tw.Residual(rescale=True)
    recipe = tw.Recipe(codec, feedback, codec, feedback)
    aggregate = Aggregate(recipe, PIECES, Rules.synchronous(1))
    for step in range(6):
        x = torch.randn(PIECES[0].numel, generator=torch.Generator().manual_seed(step))
        entry = entry_for(0, bytes(codec.encode(x, seed=0)), codec=codec.wire_id)
        for update in aggregate.count(0, step, Push(step, rates[step % 2], (entry,))):
            answer = update.entries[0]
            assert decoded(answer.encoded).isfinite().all()


def test_who_is_absent_is_not_waited_for() -> None:
    recipe = RECIPES[0]
    aggregate = Aggregate(recipe, PIECES, Rules.synchronous(3))
    workers = [Worker(recipe, rank, 3) for rank in range(3)]
    assert serve(aggregate, workers[:2]) == []
    (closed,) = aggregate.leave(2)
    assert (closed.version, len(closed.entries)) == (1, len(PIECES))
    assert len(serve(aggregate, workers[:2])) == 1
    aggregate.enter(2)
    assert serve(aggregate, workers[:2]) == []
    assert len(serve(aggregate, workers[2:])) == 1


def test_what_an_absent_worker_pushed_does_not_stand_for_another() -> None:
    recipe = RECIPES[0]
    aggregate = Aggregate(recipe, PIECES, Rules.synchronous(3))
    workers = [Worker(recipe, rank, 3) for rank in range(3)]
    serve(aggregate, [workers[2]])
    assert aggregate.leave(2) == []
    assert serve(aggregate, [workers[0]]) == []
    assert len(serve(aggregate, [workers[1]])) == 1


def test_late_workers_are_named() -> None:
    aggregate = Aggregate(RECIPES[0], PIECES, Rules(4, 4, 0))
    workers = [Worker(RECIPES[0], rank, 4) for rank in range(4)]
    serve(aggregate, [workers[2], workers[0]])
    assert aggregate.late() == {1: [1, 3]}


@pytest.mark.parametrize(
    ("workers", "quorum", "staleness"), [(0, 1, 0), (2, 3, 0), (2, 0, 0), (2, 2, -1)]
)
def test_impossible_rules_are_refused(workers: int, quorum: int, staleness: int) -> None:
    with pytest.raises(tw.ConfigError):
        Rules(workers, quorum, staleness)
