"""Single messages of hostile workers, each of which once ended a server or kept it busy.

A service in this process, turn by turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import thinwire as tw
from tests.inproc import InprocListener
from thinwire.gradient.pieces import Key
from thinwire.model import describe, digest_of
from thinwire.recipe import Recipe
from thinwire.server.service import Service
from thinwire.server.settings import Rules
from thinwire.server.turn import MOST_STEP
from thinwire.wire import frame as frames
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.messages import (
    CatchUp,
    CaughtUp,
    Counted,
    Describe,
    Described,
    Join,
    Leave,
    Message,
    Push,
    Reason,
    Refusal,
    Update,
    Welcome,
    decode,
    encode,
)

KEYS = [Key("a", (300,)), Key("b", (70,))]
RULES = Rules(workers=3, quorum=1, staleness=100)
ONE_BIT = tw.doublesqueeze(tw.OneBit())


class Stage:
    """A service that has time only when it is told to."""

    def __init__(self, recipe: Recipe = ONE_BIT, keys: Sequence[Key] = tuple(KEYS)) -> None:
        self.listener = InprocListener()
        self.service = Service(self.listener, recipe, RULES)
        self.description = describe(list(keys), recipe, server=0, servers=1)

    def turn(self) -> None:
        stops = iter([False, True])
        self.service.serve(stop=lambda: next(stops), tick_seconds=0.0)

    def worker(self, rank: int) -> Worker:
        worker = Worker(self, rank)
        worker.join(self.description)
        self.turn()
        assert isinstance(worker.received()[0], Welcome)
        return worker


class Worker:
    """A worker that may send any message."""

    def __init__(self, stage: Stage, rank: int) -> None:
        self._rank, self._run, self._epoch = rank, 0, 0
        self.connection = stage.listener.connect()

    def send(self, message: Message, *, step: int = 0) -> None:
        frame = encode(message, run=self._run, epoch=self._epoch, worker=self._rank, step=step)
        self.connection.send(frames.pack(frame), deadline_seconds=1.0)

    def join(
        self, description: Describe, *, version: int = 0, checksums: tuple[int, ...] = ()
    ) -> None:
        self.send(description)
        self.send(Join(3, 1, digest_of(description, 3), version, checksums))

    def received(self) -> list[Message]:
        found = []
        while self.connection.updates:
            frame = frames.unpack(self.connection.receive(deadline_seconds=1.0))
            found.append(decode(frame))
            self._run, self._epoch = frame.run, frame.epoch
        return found


def zeros(version: int = 0) -> Push:
    rows = ((0, 300), (1, 70))
    entries = (
        Entry(number, EncodedBytes(1, numel, memoryview(bytes(4 * numel))))
        for number, numel in rows
    )
    return Push(version, 0.1, tuple(entries))


def test_the_last_of_all_steps() -> None:
    stage = Stage()
    hostile = stage.worker(2)
    hostile.send(zeros(), step=(1 << 64) - 1)
    stage.turn()
    [leave] = hostile.received()
    assert isinstance(leave, Leave)
    assert leave.reason is Reason.PROTOCOL
    hostile = stage.worker(2)
    hostile.send(zeros(), step=MOST_STEP)
    stage.turn()
    hostile.connection.close()
    stage.turn()
    stage.worker(2)  # it is told how many steps it did


def test_a_version_that_is_made_in_the_same_turn() -> None:
    stage = Stage()
    honest, hostile = stage.worker(0), Worker(stage, 2)
    honest.send(zeros())
    hostile.join(stage.description, version=1)
    stage.turn()
    assert [type(message) for message in honest.received()] == [Counted, Update]
    assert [type(message) for message in hostile.received()] == [Welcome, CaughtUp]


@pytest.mark.parametrize(
    ("tensors", "servers", "why"),
    [
        ((Described("a", (300,)), Described("a", (70,))), 1, "2 pieces of tensors with only 1"),
        (
            (Described("a", (1 << 21,)), Described("a[0:174784]", (65_536,))),
            1,
            "pieces of tensors with only",
        ),
        ((Described("a", (300,)),), (1 << 32) - 1, "4294967295 servers, the limit is 4096"),
        ((Described("a", ((1 << 32) - 1,) * 255),), 1, "a model of more than"),
    ],
)
def test_models_that_nobody_can_train(
    tensors: tuple[Described, ...], servers: int, why: str
) -> None:
    stage = Stage()
    hostile = Worker(stage, 0)
    hostile.join(replace(stage.description, tensors=tensors, servers=servers))
    stage.turn()
    [refusal] = hostile.received()
    assert isinstance(refusal, Refusal)
    assert why in refusal.text
    stage.worker(0)


@pytest.mark.parametrize("count", [1, 3, 65_536])
def test_checksums_of_more_or_fewer_tensors(count: int) -> None:
    stage = Stage()
    hostile = Worker(stage, 0)
    hostile.join(stage.description, checksums=(7,) * count)
    stage.turn()
    [refusal] = hostile.received()
    assert isinstance(refusal, Refusal)
    assert refusal.text == f"checksums of {count} tensors, but you describe 2"


def test_first_weights_of_one_that_goes_are_forgotten() -> None:
    stage = Stage()
    hostile = Worker(stage, 0)
    hostile.join(stage.description, checksums=(6, 6))
    stage.turn()
    hostile.connection.close()
    stage.turn()
    honest, again = Worker(stage, 1), Worker(stage, 0)
    honest.join(stage.description, checksums=(7, 7))
    stage.turn()
    assert isinstance(honest.received()[0], Welcome)
    again.join(stage.description, checksums=(7, 6))
    stage.turn()
    [refusal] = again.received()
    assert isinstance(refusal, Refusal)
    assert "your b is not what this run began with" in refusal.text


def test_a_long_description_of_another_model_is_not_read() -> None:
    stage = Stage()
    stage.worker(0)
    hostile = Worker(stage, 1)
    long = tuple(Described(f"{i:x}", (1,)) for i in range(65_536))
    hostile.join(replace(stage.description, tensors=long))
    began = time.monotonic()
    stage.turn()
    assert time.monotonic() - began < 0.3  # it took 1.1 s
    assert isinstance(hostile.received()[0], Leave)


def test_an_update_that_is_larger_than_a_frame() -> None:
    """A few bytes of sparse pushes become a dense update of the whole model."""
    keys = [Key(str(i), (1 << 20,)) for i in range(17)]
    stage = Stage(tw.dense(), keys)
    hostile = stage.worker(0)
    payload = memoryview(tw.TopK(0.001).encode(torch.ones(1 << 20), seed=0))
    hostile.send(
        Push(0, 0.1, tuple(Entry(i, EncodedBytes(5, 1 << 20, payload)) for i in range(17)))
    )
    stage.turn()
    counted, *updates = hostile.received()
    assert isinstance(counted, Counted)
    pieces = [e.piece for update in updates if isinstance(update, Update) for e in update.entries]
    assert len(updates) == 2
    assert pieces == list(range(17))


def test_a_hundred_questions_in_a_turn_get_one_answer() -> None:
    stage = Stage()
    hostile = stage.worker(0)
    hostile.send(zeros())
    stage.turn()
    hostile.received()
    for _ in range(100):
        hostile.send(CatchUp(0))
    stage.turn()
    assert [type(message) for message in hostile.received()] == [Update, CaughtUp]


def test_the_same_pieces_many_times_count_once() -> None:
    stage = Stage()
    hostile = stage.worker(0)
    for _ in range(50):
        hostile.send(zeros())
    stage.turn()
    found = [type(message) for message in hostile.received()]
    assert found == [Counted] * 50 + [Update]
    assert stage.service.training.version == 1


def test_peers_that_do_not_join_make_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who describes something and says no more is gone when there are too many, or after 20 s."""
    stage = Stage()
    honest = stage.worker(0)
    unjoined = [Worker(stage, 1) for _ in range(100)]
    for peer in unjoined:
        peer.send(stage.description)
    stage.turn()
    assert len(stage.service.members.peers) == 1 + 3 + 64
    assert isinstance(unjoined[0].received()[0], Leave)
    assert not unjoined[-1].received()
    later = time.monotonic() + 21
    monkeypatch.setattr("thinwire.server.service.time.monotonic", lambda: later)
    stage.turn()
    assert isinstance(unjoined[-1].received()[0], Leave)
    assert len(stage.service.members.peers) == 1
    honest.send(zeros())
    stage.turn()
    assert len(honest.received()) == 2


def test_nothing_is_kept_of_those_who_came_and_went() -> None:
    stage = Stage()
    for _ in range(500):
        worker = Worker(stage, 0)
        worker.send(CatchUp(0))
        worker.send(CatchUp(0))
        worker.connection.close()
        stage.turn()
    members = stage.service.members
    assert len(members.ended) <= 64
    assert not members.peers
    assert not members.ignored


def test_refusals_are_a_few_lines_of_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    for _ in range(200):
        worker = Worker(stage, 0)
        worker.join(replace(stage.description, recipe="x\nWARNING worker 0 is lost\x1b[2J"))
        stage.turn()
        worker.connection.close()
    lines = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert 1 < len(lines) < 30
    assert not [line for line in lines if not line.isprintable()]
