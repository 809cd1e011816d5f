"""wire/session.py: the tables of the two roles fit together, in whatever they can come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from thinwire.wire.messages import MESSAGES, Message
from thinwire.wire.session import RECEIVES, SENDS, Role, State

IN_FLIGHT = 2  # messages on the wire each way: enough for all that can cross to cross


class Pair(NamedTuple):
    """Both ends and what is on the wire between them, as classes of messages."""

    worker: State
    server: State
    to_server: tuple[type[Message], ...]
    to_worker: tuple[type[Message], ...]


def sent(pair: Pair) -> Iterator[Pair]:
    """All that either end may say next."""
    if len(pair.to_server) < IN_FLIGHT:
        for cls, state in SENDS[Role.WORKER].get(pair.worker, {}).items():
            yield pair._replace(worker=state, to_server=(*pair.to_server, cls))
    if len(pair.to_worker) < IN_FLIGHT:
        for cls, state in SENDS[Role.SERVER].get(pair.server, {}).items():
            yield pair._replace(server=state, to_worker=(*pair.to_worker, cls))


def heard(pair: Pair) -> Iterator[Pair]:
    """All that either end may hear next. KeyError: one may say what the other may not hear."""
    if pair.to_server:
        cls, *rest = pair.to_server
        yield pair._replace(server=RECEIVES[Role.SERVER][pair.server][cls], to_server=tuple(rest))
    if pair.to_worker:
        cls, *rest = pair.to_worker
        yield pair._replace(worker=RECEIVES[Role.WORKER][pair.worker][cls], to_worker=tuple(rest))


def all_pairs() -> dict[Pair, set[Pair]]:
    """Every situation that lawful ends can come to, with those that follow it."""
    follows: dict[Pair, set[Pair]] = {}
    found = [Pair(State.NEW, State.NEW, (), ())]
    while found:
        pair = found.pop()
        if pair not in follows:
            follows[pair] = {*sent(pair), *heard(pair)}
            found.extend(follows[pair])
    return follows


def test_whatever_one_may_say_the_other_may_hear() -> None:
    pairs = all_pairs()
    assert {pair.worker for pair in pairs} == set(State) - {State.FAILED}
    assert {pair.server for pair in pairs} == set(State) - {State.FAILED}


def test_from_everywhere_both_ends_can_close() -> None:
    follows = all_pairs()
    closing = {Pair(State.CLOSED, State.CLOSED, (), ())}
    while more := {pair for pair in follows if follows[pair] & closing} - closing:
        closing |= more
    assert closing == set(follows)


def test_nothing_may_be_heard_that_is_never_said() -> None:
    for hearer, speaker in ((Role.WORKER, Role.SERVER), (Role.SERVER, Role.WORKER)):
        said = {cls for row in SENDS[speaker].values() for cls in row}
        may_be_heard = {cls for row in RECEIVES[hearer].values() for cls in row}
        assert may_be_heard == said
    assert {cls for role in Role for row in SENDS[role].values() for cls in row} == set(
        MESSAGES.values()
    )
