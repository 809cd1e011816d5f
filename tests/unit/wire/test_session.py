"""wire/session.py: a session from beginning to end, and each rule refuses what it must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from thinwire import errors
from thinwire.wire.frame import SERVER, Frame
from thinwire.wire.messages import (
    CatchUp,
    CaughtUp,
    Join,
    Leave,
    Message,
    Push,
    Reason,
    Refusal,
    Update,
    Welcome,
)
from thinwire.wire.session import Session, State

JOIN = Join(workers=4, pieces=161, digest=bytes(32), version=9)
WELCOME = Welcome(version=12, quorum=4, staleness=0)
LEAVE = Leave(Reason.DONE, "")


def tell(speaker: Session, hearer: Session, message: Message, *, step: int = 0) -> None:
    speaker.send(message, step=step)
    assert hearer.receive(speaker.encode(message, step=step)) == message


def ready() -> tuple[Session, Session]:
    worker, server = Session.of_worker(3), Session.of_server(run=7, epoch=2)
    tell(worker, server, JOIN)
    tell(server, worker, WELCOME)
    return worker, server


def test_a_session_from_join_to_leave() -> None:
    worker, server = ready()
    assert (worker.run, worker.epoch, server.worker) == (7, 2, 3)
    tell(worker, server, Push(9, 0.1, ()), step=41)
    tell(server, worker, Update(10, ()))
    tell(server, worker, Refusal(12, Reason.STALE, "too old", (1, 2)), step=41)
    tell(worker, server, CatchUp(10), step=42)
    tell(server, worker, CaughtUp(12))
    tell(worker, server, LEAVE)
    tell(server, worker, LEAVE)
    assert (worker.state, server.state) == (State.CLOSED, State.CLOSED)


def test_a_refused_join_closes_both_sides() -> None:
    worker, server = Session.of_worker(3), Session.of_server(run=7, epoch=2)
    tell(worker, server, JOIN)
    tell(server, worker, Refusal(12, Reason.DIGEST, "another recipe"))
    assert (worker.state, server.state) == (State.CLOSED, State.CLOSED)


def test_a_leave_crosses_what_was_said_before_it_was_heard() -> None:
    worker, server = ready()
    worker.send(LEAVE)
    tell(server, worker, Update(10, ()))
    assert worker.state is State.LEAVING
    server.receive(worker.encode(LEAVE))
    tell(server, worker, LEAVE)
    assert (worker.state, server.state) == (State.CLOSED, State.CLOSED)


def test_saying_the_wrong_thing_is_our_bug_and_changes_nothing() -> None:
    worker = Session.of_worker(3)
    with pytest.raises(
        errors.LocalProtocolError, match="Push while the worker is new, expected Describe, Join"
    ):
        worker.send(Push(9, 0.1, ()))
    assert worker.state is State.NEW
    worker.send(JOIN)
    with pytest.raises(errors.LocalProtocolError, match="is joining, expected nothing"):
        worker.send(LEAVE)


def test_hearing_the_wrong_thing_ends_the_session() -> None:
    worker, server = ready()
    with pytest.raises(errors.RemoteProtocolError, match="Join while the worker is ready"):
        worker.receive(server.encode(JOIN))
    assert worker.state is State.FAILED
    with pytest.raises(errors.RemoteProtocolError, match="is failed, expected nothing"):
        worker.receive(server.encode(CaughtUp(12)))
    tell(worker, server, Leave(Reason.PROTOCOL, "a second Join"))
    assert (worker.state, server.state) == (State.CLOSED, State.LEFT)


@pytest.mark.parametrize("state", [State.LEAVING, State.CLOSED])
def test_a_side_that_has_said_leave_does_not_say_it_again(state: State) -> None:
    worker, server = ready()
    worker.send(LEAVE)
    if state is State.CLOSED:
        server.receive(worker.encode(LEAVE))
        tell(server, worker, LEAVE)
    assert worker.state is state
    with pytest.raises(errors.RemoteProtocolError, match="Welcome while"):
        worker.receive(server.encode(WELCOME))
    assert worker.state is State.CLOSED


def test_a_join_that_breaks_a_rule_can_be_answered() -> None:
    worker, server = Session.of_worker(3, run=5), Session.of_server(run=7, epoch=2)
    worker.send(JOIN)
    with pytest.raises(errors.RemoteProtocolError, match="frame of run 5, epoch 0"):
        server.receive(worker.encode(JOIN))
    server.send(Leave(Reason.EPOCH, "this is run 7"))
    assert server.state is State.CLOSED


def test_a_push_to_the_server_before_its_restart_is_refused() -> None:
    worker, _ = ready()
    restarted = Session.of_server(run=7, epoch=3)
    with pytest.raises(errors.RemoteProtocolError, match=r"epoch 2, worker 3; .* new, .* epoch 3"):
        restarted.receive(worker.encode(Push(9, 0.1, ()), step=41))


def test_a_worker_may_join_again_after_a_restart() -> None:
    worker, restarted = Session.of_worker(3, run=7), Session.of_server(run=7, epoch=3)
    tell(worker, restarted, JOIN)
    tell(restarted, worker, WELCOME)
    assert (worker.run, worker.epoch) == (7, 3)


Change = Callable[[Frame], Frame]


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: replace(frame, run=8),
        lambda frame: replace(frame, run=0),
        lambda frame: replace(frame, epoch=1),
        lambda frame: replace(frame, epoch=0),
        lambda frame: replace(frame, worker=4),
    ],
)
def test_frames_of_another_run_epoch_or_sender_are_refused(change: Change) -> None:
    worker, server = ready()
    with pytest.raises(errors.RemoteProtocolError, match="session: frame of run"):
        server.receive(change(worker.encode(CatchUp(9))))
    with pytest.raises(errors.RemoteProtocolError, match="session: frame of run"):
        worker.receive(change(server.encode(CaughtUp(9))))


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: replace(frame, run=6),
        lambda frame: replace(frame, epoch=2),
        lambda frame: replace(frame, worker=SERVER),
    ],
)
def test_a_join_from_elsewhere_is_refused(change: Change) -> None:
    server = Session.of_server(run=7, epoch=2)
    with pytest.raises(errors.RemoteProtocolError, match="session: frame of run"):
        server.receive(change(Session.of_worker(3).encode(JOIN)))


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: replace(frame, run=6),
        lambda frame: replace(frame, run=0),
        lambda frame: replace(frame, epoch=0),
        lambda frame: replace(frame, worker=3),
    ],
)
def test_a_welcome_from_elsewhere_is_refused(change: Change) -> None:
    worker = Session.of_worker(3, run=7)
    worker.send(JOIN)
    welcome = Session.of_server(run=7, epoch=2).encode(WELCOME)
    with pytest.raises(errors.RemoteProtocolError, match="session: frame of run"):
        worker.receive(change(welcome))


def test_an_update_that_the_worker_has_applied_is_refused_on_both_sides() -> None:
    worker, server = ready()
    with pytest.raises(errors.LocalProtocolError, match="update: version 9, expected at least 10"):
        server.send(Update(9, ()))
    with pytest.raises(errors.RemoteProtocolError, match="update: version 9, expected at least 10"):
        worker.receive(server.encode(Update(9, ())))


def test_updates_may_come_in_any_order_of_versions() -> None:
    worker, server = ready()
    for version in (11, 10, 12, 10):
        tell(server, worker, Update(version, ()))


def test_a_server_that_is_behind_its_worker_cannot_welcome_it() -> None:
    worker, server = Session.of_worker(3), Session.of_server(run=7, epoch=2)
    tell(worker, server, JOIN)
    behind = Welcome(version=8, quorum=4, staleness=0)
    with pytest.raises(errors.LocalProtocolError, match="welcome: version 8, expected at least 9"):
        server.send(behind)
    with pytest.raises(errors.RemoteProtocolError, match="welcome: version 8, expected at least 9"):
        worker.receive(server.encode(behind))


def test_a_catch_up_does_not_go_behind_the_join() -> None:
    worker, server = ready()
    with pytest.raises(errors.LocalProtocolError, match="catchup: version 8, expected at least 9"):
        worker.send(CatchUp(8))
    with pytest.raises(errors.RemoteProtocolError, match="catchup: version 8, expected at least 9"):
        server.receive(worker.encode(CatchUp(8)))


@pytest.mark.parametrize(
    ("step", "version", "message"),
    [
        (40, 9, "push: step 40, expected at least 41"),
        (41, 8, "push: version 8, expected at least 9"),
    ],
)
def test_pushes_go_forward(step: int, version: int, message: str) -> None:
    worker, server = ready()
    tell(worker, server, Push(9, 0.1, ()), step=41)
    tell(worker, server, Push(9, 0.1, ()), step=41)
    with pytest.raises(errors.LocalProtocolError, match=message):
        worker.send(Push(version, 0.1, ()), step=step)
    with pytest.raises(errors.RemoteProtocolError, match=message):
        server.receive(worker.encode(Push(version, 0.1, ()), step=step))


def test_a_message_that_cannot_be_read_ends_the_session() -> None:
    worker, server = ready()
    with pytest.raises(errors.RemoteProtocolError, match="catchup: 1 bytes too many"):
        server.receive(replace(worker.encode(CatchUp(9)), body=memoryview(bytes(9))))
    assert server.state is State.FAILED


@pytest.mark.parametrize("worker", [-1, SERVER])
def test_impossible_workers_are_refused(worker: int) -> None:
    with pytest.raises(errors.ConfigError, match=f"worker {worker}"):
        Session.of_worker(worker)


@pytest.mark.parametrize(("run", "epoch"), [(0, 1), (1, 0)])
def test_a_server_knows_its_run_and_epoch(run: int, epoch: int) -> None:
    with pytest.raises(errors.ConfigError, match=f"run {run}, epoch {epoch}"):
        Session.of_server(run=run, epoch=epoch)
