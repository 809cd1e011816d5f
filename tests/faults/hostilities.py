"""What hostile clients do to a server, again and again, until they are killed.

A hostility is a function of a target that does one round; it raises AssertionError if the server
did not end or refuse what it must not accept.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import thinwire as tw
from tests.cases import CODECS
from tests.faults import wire
from tests.server.servers import network
from tests.transports import pair
from thinwire.gradient.pieces import Key
from thinwire.keys.settings import WorkerKeys, own_certificate
from thinwire.model import describe, digest_of
from thinwire.recipe import Recipe
from thinwire.transport.peer_limits import MIB
from thinwire.transport.tcp import connect
from thinwire.wire import frame as frames
from thinwire.wire.body import EncodedBytes, Entry
from thinwire.wire.messages import (
    CatchUp,
    Describe,
    Described,
    Join,
    Leave,
    Message,
    Push,
    Reason,
    Refusal,
    Report,
    Welcome,
    decode,
    encode,
)

SECONDS = 20.0
RECIPE = tw.doublesqueeze(tw.OneBit())
_U32 = (1 << 32) - 1
_PAUSE_SECONDS = 0.02  # between rounds: the machine is for the honest ones, too
_REST_SECONDS = 600.0  # after what is done only once


@dataclass(frozen=True, slots=True)
class Target:
    """A server; ``rank`` is one that a hostile worker may take, ``keys`` let it in."""

    address: str
    workers: int
    rank: int = 1
    keys: WorkerKeys | None = None
    recipe: Recipe = RECIPE

    def description(self) -> Describe:
        keys = [Key(name, tuple(p.shape)) for name, p in network().named_parameters()]
        return describe(keys, self.recipe, server=0, servers=1)


def repeat(hostility: Callable[[Target], None], target: Target) -> None:
    """Until the process is killed. What the server closes early is no error here."""
    while True:
        with suppress(OSError, tw.TransportError):
            hostility(target)
        time.sleep(_PAUSE_SECONDS)


class Voice:
    """One connection that says anything, whether it may or not."""

    def __init__(self, target: Target) -> None:
        self.target, self.run, self.epoch, self.version = target, 0, 0, 0
        self._connection = connect(target.address, deadline_seconds=SECONDS, keys=target.keys)

    def say(self, message: Message, *, step: int = 0) -> None:
        frame = encode(message, run=self.run, epoch=self.epoch, worker=self.target.rank, step=step)
        self.send(b"".join(frames.pack(frame)))

    def send(self, data: bytes) -> None:
        with suppress(tw.TransportClosed):
            self._connection.send(data, deadline_seconds=SECONDS)

    def hear(self) -> Message:
        """TransportClosed if the server has ended the connection."""
        frame = frames.unpack(self._connection.receive(deadline_seconds=SECONDS))
        message = decode(frame)
        if isinstance(message, Welcome):
            self.run, self.epoch, self.version = frame.run, frame.epoch, message.version
        return message

    def ending(self) -> str:
        """Why the server ends this session; waits for it."""
        while True:
            message = self.hear()
            if isinstance(message, Leave | Refusal):
                return message.text

    def apply(self, description: Describe, *, version: int = 0) -> None:
        workers = self.target.workers
        self.say(description)
        self.say(Join(workers, 1, digest_of(description, workers), version))

    def close(self) -> None:
        self._connection.close()


@contextmanager
def voice(target: Target) -> Iterator[Voice]:
    one = Voice(target)
    try:
        yield one
    finally:
        one.close()


@contextmanager
def member(target: Target) -> Iterator[Voice]:
    """One that has joined, when there is some history."""
    with voice(target) as one:
        one.apply(target.description())
        message = one.hear()
        if not isinstance(message, Welcome) or message.version == 0:
            time.sleep(0.5)
            raise tw.TransportClosed(f"not yet: {message}")
        yield one


# Strangers, who have no key or need none.


def plain_text(target: Target) -> None:
    with wire.tcp(target.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)


def random_bytes(target: Target) -> None:
    for start in (b"", b"thinwire", wire.hello()):
        with wire.tcp(target.address) as stranger:
            stranger.sendall(start + os.urandom(4000))


def random_frames(target: Target) -> None:
    with wire.shake_hands(target.address) as stranger:
        for nbytes in (0, 1, 39, 40, 41, 1000, 100_000):
            stranger.sendall(wire.frame(os.urandom(nbytes)))
        assert wire.is_cut(stranger)


def bad_checksums(target: Target) -> None:
    frame = encode(target.description(), run=0, epoch=0, worker=target.rank, step=0)
    data = bytearray(b"".join(frames.pack(frame)))
    data[-1] ^= 1
    with voice(target) as one:
        one.send(bytes(data))
        assert "checksum" in one.ending()


def flood(target: Target, count: int = 100_000) -> None:
    """Bad frames, as many as the server takes on each connection. Once."""
    batch = b"".join(wire.frame(os.urandom(40)) for _ in range(1000))
    sent = 0
    while sent < count:
        with suppress(OSError), wire.shake_hands(target.address) as stranger:
            for _ in range(20):
                stranger.sendall(batch)
                sent += 1000
    time.sleep(_REST_SECONDS)


def pour_on(target: Target, data: bytes, connections: int = 16) -> None:
    """As fast as it goes, for ever, from many connections that come back whenever they are cut."""

    def pour() -> None:
        while True:
            with suppress(OSError), wire.shake_hands(target.address) as stranger:
                while True:
                    stranger.sendall(data)

    threads = [threading.Thread(target=pour, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def huge_sizes(target: Target) -> None:
    for nbytes in (5 << 20, 1 << 27, 1 << 31, (1 << 32) - 2):
        with wire.shake_hands(target.address) as stranger:
            stranger.sendall(wire.declared(nbytes) + bytes(5000))
            assert wire.is_cut(stranger)


def heartbeats(target: Target) -> None:
    """Without end, and not one frame."""
    with wire.shake_hands(target.address) as stranger:
        stranger.sendall(wire.HEARTBEAT * 100)
        assert wire.is_cut(stranger)


def half_frames(target: Target, count: int = 100) -> None:
    """Frames that are declared, begun, and never end."""
    strangers: list[socket.socket] = []
    try:
        for _ in range(count):
            strangers.append(wire.shake_hands(target.address))
            strangers[-1].sendall(wire.declared(4 * MIB) + bytes(1000))
        time.sleep(1.0)
    finally:
        for stranger in strangers:
            stranger.close()


def half_hellos(target: Target) -> None:
    """Each of the bytes of a hello is the last one of some connection; one has a wrong byte."""
    for nbytes in range(len(wire.hello())):
        with wire.tcp(target.address) as stranger:
            stranger.sendall(wire.hello()[:nbytes])
    with wire.tcp(target.address) as stranger:
        stranger.sendall(b"thinwirE" + bytes(100))
        assert wire.is_cut(stranger)
    with wire.tcp(target.address) as stranger:
        stranger.sendall(wire.hello()[:10] + b"\xff\xff" + bytes(100))
        assert wire.is_cut(stranger)


def unknown_key(target: Target) -> None:
    assert target.keys is not None
    _, worker = pair()
    try:
        connect(
            target.address,
            deadline_seconds=SECONDS,
            keys=WorkerKeys(worker.key, target.keys.server),
        )
    except tw.Refused:
        return
    raise AssertionError("an unknown key was let in")


def without_keys(target: Target) -> None:
    """To a server that has keys: the hello of one that has none, and frames after it."""
    with wire.tcp(target.address) as stranger:
        stranger.sendall(wire.hello() + wire.frame(os.urandom(40)) * 10)
        assert wire.is_cut(stranger)


def stolen_certificate(target: Target) -> None:
    """The hello names a certificate that is allowed, and what follows is no TLS."""
    assert target.keys is not None
    certificate = own_certificate(Path(target.keys.key))
    for data in (b"", os.urandom(1000), b"\x16\x03\x01\x40\x00" + bytes(1000)):
        with wire.tcp(target.address) as stranger:
            stranger.sendall(wire.hello(wire.TLS, certificate) + data)
            assert not data or wire.is_cut(stranger)


def come_and_go(target: Target, count: int = 300) -> None:
    for n in range(count):
        with suppress(OSError), wire.shake_hands(target.address) as stranger:
            stranger.sendall(wire.frame(b"x" * (n % 3)))
    time.sleep(_REST_SECONDS)


def take_places(target: Target) -> None:
    """More connections than a server has places, of which each says something and then nothing."""
    frame = encode(target.description(), run=0, epoch=0, worker=target.rank, step=0)
    hello = wire.frame(b"".join(frames.pack(frame)))
    strangers: list[socket.socket] = []
    try:
        for _ in range(300):
            strangers.append(wire.shake_hands(target.address))
            strangers[-1].sendall(hello)
        time.sleep(1.0)
    finally:
        for stranger in strangers:
            stranger.close()


# Peers that were let in, and are not members.


def join_undescribed(target: Target) -> None:
    with voice(target) as one:
        one.say(Join(target.workers, 1, bytes(32), 0))
        assert re.search("say what you train before you join|has joined already", one.ending())


def push_unjoined(target: Target) -> None:
    with voice(target) as one:
        one.say(
            Push(
                0, 0.1, tuple(Entry(i, EncodedBytes(1, 0, memoryview(b""))) for i in range(65_536))
            )
        )
        assert "before a Join" in one.ending()


def absurd_models(target: Target) -> None:
    fine = target.description()
    long = tuple(Described(f"{i:x}", (1 << 21,)) for i in range(65_536))
    for absurd in (
        replace(fine, tensors=long),
        replace(fine, tensors=(Described("x", (_U32,) * 255),) * 1000),
        replace(fine, tensors=(Described("x", (1 << 20, 1 << 17)),)),
        replace(fine, tensors=(Described("x", (70,)), Described("x", (300,)))),
        replace(fine, servers=_U32),
    ):
        with voice(target) as one:
            one.apply(absurd)
            assert one.ending()


def oversized_description(target: Target) -> None:
    """The largest frame there can be: it took a server 43 s to read. Now it is cut before."""
    fields = b"".join(
        (bytes(4), (1).to_bytes(4, "little"), bytes(8), bytes(4), (60_000).to_bytes(4, "little"))
    )
    body = memoryview(fields + (bytes(4) + b"\xff" + b"\xff" * 1020) * 60_000)
    frame = frames.Frame(Describe.kind, 0, 0, target.rank, 0, body)
    with voice(target) as one:
        one.send(b"".join(frames.pack(frame)))
        one.ending()
        raise AssertionError("such a frame was answered")


def wrong_numbers(target: Target) -> None:
    """Of workers, of the rank, and of the run."""
    for wrong, expected in (
        (replace(target, workers=7), "you say 7"),
        (replace(target, rank=target.workers), "there are only workers 0 to"),
        (replace(target, rank=_U32 - 1), "there are only workers 0 to"),
    ):
        with voice(wrong) as one:
            one.apply(target.description())
            assert expected in one.ending()
    with voice(target) as one:
        one.run = 12345
        one.apply(target.description())
        assert "another run" in one.ending()


def forged_lines(target: Target) -> None:
    with voice(target) as one:
        recipe = "\nWARNING worker 0 is lost\r\x1b[2J" * 20
        one.apply(replace(target.description(), recipe=recipe))
        assert re.search("the recipe here is|has joined already", one.ending())


def rank_in_use(target: Target) -> None:
    with voice(target) as one:
        one.apply(target.description())
        assert "has joined already" in one.ending()


# Members: workers that have joined.


def bad_pushes(target: Target) -> None:
    """Each of them ends its session."""
    numel = target.description().tensors[1].shape[0]
    for entry in _bad_entries(1, numel):
        _refused(target, Push(1, 0.1, (entry,)))
    future = Entry(1, EncodedBytes(1, numel, memoryview(bytes(4 * numel))))
    _refused(target, Push(1 << 40, 0.1, (future,)))
    _refused(target, Push(1, 0.1, (future,)), step=(1 << 64) - 1)
    _refused(target, Push(1, 0.1, ()), Push(0, 0.1, ()))
    with member(target) as one:
        one.say(Push(1, 0.1, ()), step=5)
        one.say(Push(1, 0.1, ()), step=4)
        assert "push: step 4" in one.ending()


def _bad_entries(piece: int, numel: int) -> Iterator[Entry]:
    yield Entry(70_000, EncodedBytes(1, numel, memoryview(bytes(4 * numel))))
    yield Entry(piece, EncodedBytes(1, numel + 1, memoryview(bytes(4 * numel + 4))))
    yield Entry(piece, EncodedBytes(0, numel, memoryview(b"")))
    yield Entry(piece, EncodedBytes(0xFFFF, numel, memoryview(b"x")))
    for value in (float("nan"), float("inf"), 3.4e38):
        x = torch.full((numel,), value)
        yield Entry(piece, EncodedBytes(1, numel, memoryview(tw.Float32().encode(x, seed=0))))
    x = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    for codec in {type(codec): codec for codec in CODECS}.values():
        payload = codec.encode(x, seed=0)
        yield Entry(piece, EncodedBytes(codec.wire_id, numel, memoryview(payload[:-1])))
        yield Entry(piece, EncodedBytes(codec.wire_id, numel, memoryview(payload + b"\0")))


def _refused(target: Target, *pushes: Push, step: int = 1 << 20) -> None:
    with member(target) as one:
        for push in pushes:
            one.say(push, step=step)
        assert one.ending()


def old_epochs(target: Target) -> None:
    """Pushes that would be fine, had the server not been started again."""
    numel = target.description().tensors[1].shape[0]
    entry = Entry(1, EncodedBytes(1, numel, memoryview(bytes(4 * numel))))
    with member(target) as one:
        run, epoch, version = one.run, one.epoch, one.version
    for start in (voice, member):
        with start(target) as one:
            one.run, one.epoch = run, epoch - 1
            one.say(Push(version, 0.1, (entry,)), step=1 << 20)
            assert f"epoch {epoch - 1}, worker 2; this server's session" in one.ending()


def stale_pushes(target: Target) -> None:
    """Not the end of a session, but they do not count."""
    numel = target.description().tensors[1].shape[0]
    entry = Entry(1, EncodedBytes(1, numel, memoryview(torch.ones(numel).numpy().tobytes())))
    with member(target) as one:
        for step in range(200):
            one.say(Push(0, 0.1, (entry,)), step=1000 + step)
        for _ in range(20):
            assert "versions behind" in one.ending()
        one.say(Leave(Reason.STOPPING, "\nWARNING worker 0 is lost"))
        assert one.ending()


def catch_ups(target: Target) -> None:
    """For ever, from the first version, and all is read."""
    with member(target) as one:
        until = time.monotonic() + 5.0
        while time.monotonic() < until:
            for _ in range(100):
                one.say(CatchUp(0))
            for _ in range(20):
                one.hear()


def catch_ups_unread(target: Target) -> None:
    with member(target) as one:
        for _ in range(10_000):
            one.say(CatchUp(0))
        time.sleep(_REST_SECONDS)


def flood_of_reports(target: Target) -> None:
    """As fast as the network takes them; a worker of ours would wait."""
    with suppress(OSError), wire.shake_hands(target.address) as one:
        description, workers = target.description(), target.workers
        join = Join(workers, 1, digest_of(description, workers), 0)
        for message in (description, join):
            one.sendall(wire.frame(_packed(message, target)))
        welcome = frames.unpack(memoryview(wire.read_frame(one)))
        report = _packed(Report(1.0), target, run=welcome.run, epoch=welcome.epoch)
        for _ in range(100):
            one.sendall(wire.frame(report) * 1000)
    time.sleep(_REST_SECONDS)


def _packed(message: Message, target: Target, *, run: int = 0, epoch: int = 0) -> bytes:
    frame = encode(message, run=run, epoch=epoch, worker=target.rank, step=0)
    return b"".join(frames.pack(frame))


def never_read(target: Target) -> None:
    """A member that hears everything that is published, and takes nothing of it."""
    with wire.shake_hands(target.address) as one:
        description, workers = target.description(), target.workers
        join = Join(workers, 1, digest_of(description, workers), 0)
        for message in (description, join):
            one.sendall(wire.frame(_packed(message, target)))
        time.sleep(SECONDS)


def join_and_leave(target: Target) -> None:
    with member(target) as one:
        one.say(Leave(Reason.STOPPING, "x" * 1000))
        one.ending()
