"""What every transport promises: frames, order, deadlines, and the truth about who is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.transports import DEADLINE_SECONDS, Rig, event, frame, gone
from thinwire import errors
from thinwire.clock import Deadline
from thinwire.transport.base import PeerGone, PeerId, Received
from thinwire.transport.peer_limits import DEFAULT_LIMITS, TransportLimits


def in_threads(*works: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    return threads


def test_frames_keep_their_order_and_their_bytes(rig: Rig) -> None:
    connection, _ = rig.introduce()
    frames = [bytes([n % 256]) * (n * 37 % 5000) for n in range(1000)]

    def send() -> None:
        for data in frames:
            connection.send(data, deadline_seconds=DEADLINE_SECONDS)

    (sender,) = in_threads(send)
    for expected in frames:
        received = frame(rig.listener)
        assert bytes(received.frame) == expected
        rig.listener.send(received.peer, bytes(received.frame))
        assert bytes(connection.receive(deadline_seconds=DEADLINE_SECONDS)) == expected
    sender.join()


def test_the_largest_frame_travels_both_ways_and_a_larger_one_is_refused(rig: Rig) -> None:
    most = DEFAULT_LIMITS.max_message_nbytes
    data = bytes(range(256)) * (most // 256 + 1)
    connection, peer = rig.introduce()
    connection.send(data[:most], deadline_seconds=DEADLINE_SECONDS)
    assert bytes(frame(rig.listener).frame) == data[:most]
    rig.listener.send(peer, data[:most])
    assert bytes(connection.receive(deadline_seconds=DEADLINE_SECONDS)) == data[:most]
    with pytest.raises(errors.LocalProtocolError, match=f"{most + 1} bytes, the limit is {most}"):
        connection.send(data[: most + 1], deadline_seconds=DEADLINE_SECONDS)
    with pytest.raises(errors.LocalProtocolError, match=f"{most + 1} bytes, the limit is {most}"):
        rig.listener.send(peer, data[: most + 1])


def test_a_frame_in_pieces_is_one_frame_and_its_buffers_are_free_at_once(rig: Rig) -> None:
    connection, peer = rig.introduce()
    body = bytearray(b"a" * 200_000)
    connection.send((b"head", memoryview(body)), deadline_seconds=DEADLINE_SECONDS)
    body[:] = b"b" * len(body)
    rig.listener.send(peer, (b"head", memoryview(body)))
    body[:] = b"c" * len(body)
    assert bytes(frame(rig.listener).frame) == b"head" + b"a" * len(body)
    answer = connection.receive(deadline_seconds=DEADLINE_SECONDS)
    assert bytes(answer) == b"head" + b"b" * len(body)
    assert (answer.format, answer.ndim, answer.contiguous) == ("B", 1, True)


def test_peers_are_told_apart_and_each_keeps_its_order(rig: Rig) -> None:
    connections = [rig.introduce()[0] for _ in range(4)]

    def send(name: int) -> Callable[[], None]:
        def work() -> None:
            for n in range(500):
                connections[name].send(b"%d %d" % (name, n), deadline_seconds=DEADLINE_SECONDS)

        return work

    senders = in_threads(*map(send, range(4)))
    heard: dict[PeerId, list[bytes]] = {}
    for _ in range(4 * 500):
        received = frame(rig.listener)
        heard.setdefault(received.peer, []).append(bytes(received.frame))
    names = {peer: frames[0].split()[0] for peer, frames in heard.items()}
    assert sorted(names.values()) == [b"0", b"1", b"2", b"3"]
    for peer, frames in heard.items():
        assert frames == [b"%s %d" % (names[peer], n) for n in range(500)]
        rig.listener.send(peer, names[peer])
    for name, connection in enumerate(connections):
        assert bytes(connection.receive(deadline_seconds=DEADLINE_SECONDS)) == b"%d" % name
    for thread in senders:
        thread.join()


def test_every_wait_ends_and_says_what_was_awaited(rig: Rig) -> None:
    connection, _ = rig.introduce()
    assert rig.listener.receive(deadline_seconds=0.0) is None
    assert rig.listener.receive(deadline_seconds=0.05) is None
    for seconds in (0.0, 0.05):
        with pytest.raises(errors.TransportTimeout) as caught:
            connection.receive(deadline_seconds=seconds, what="version 7")
        assert str(caught.value) == (
            f"version 7: nothing from the server at {rig.listener.address} within {seconds:g} s"
        )
    with pytest.raises(errors.ConfigError, match="deadline_seconds"):
        connection.receive(deadline_seconds=-1.0)


def test_a_server_that_does_not_read_makes_its_workers_wait(
    make_rig: Callable[[TransportLimits], Rig],
) -> None:
    limits = TransportLimits(max_unread_messages=16)
    rig = make_rig(limits)
    connection, _ = rig.introduce()
    sent = 0
    with pytest.raises(errors.TransportTimeout, match="not taken by the server at"):  # noqa: PT012
        for _ in range(1000):
            connection.send(bytes(1 << 20), deadline_seconds=0.3)
            sent += 1
    for _ in range(sent):  # nothing is lost
        assert len(frame(rig.listener).frame) == 1 << 20
    connection.send(b"again", deadline_seconds=DEADLINE_SECONDS)
    found = frame(rig.listener)
    if len(found.frame) == 1 << 20:  # the beginning of the last one had left, so it comes whole
        found = frame(rig.listener)
    assert bytes(found.frame) == b"again"


def test_what_timed_out_before_it_began_never_arrives(
    make_rig: Callable[[TransportLimits], Rig],
) -> None:
    rig = make_rig(TransportLimits(max_unread_messages=2))
    connection, _ = rig.introduce()
    sent: list[bytes] = []
    failed: list[bytes] = []
    while len(failed) < 5:
        data = b"%d" % (len(sent) + len(failed))
        try:
            connection.send(data.ljust(1 << 20), deadline_seconds=0.2)
            sent.append(data)
        except errors.TransportTimeout:
            failed.append(data)
    (ender,) = in_threads(lambda: connection.send(b"end", deadline_seconds=DEADLINE_SECONDS))
    heard: list[bytes] = []
    while not heard or heard[-1] != b"end":
        heard.append(bytes(frame(rig.listener).frame).rstrip())
    ender.join()
    begun = [data for data in heard if data in failed]
    assert len(begun) <= 1
    assert heard == [*sorted(sent + begun, key=int), b"end"]


def test_the_last_frames_of_a_worker_come_before_it_is_gone(rig: Rig) -> None:
    for _ in range(20):
        connection, peer = rig.introduce()
        for n in range(3):
            connection.send(b"%d" % n, deadline_seconds=DEADLINE_SECONDS)
        connection.close()
        assert [bytes(frame(rig.listener).frame) for _ in range(3)] == [b"0", b"1", b"2"]
        assert gone(rig.listener).peer == peer
        rig.listener.send(peer, b"too late")  # does nothing
        rig.listener.drop(peer)


def test_a_worker_that_sends_once_and_leaves_is_heard(rig: Rig) -> None:
    for n in range(20):
        connection = rig.connect()
        connection.send(b"%d" % n, deadline_seconds=DEADLINE_SECONDS)
        connection.close()
        received = frame(rig.listener)
        assert bytes(received.frame) == b"%d" % n
        assert gone(rig.listener).peer == received.peer


def test_the_last_words_of_a_server_are_heard(rig: Rig) -> None:
    connection, peer = rig.introduce()
    for n in range(3):
        rig.listener.send(peer, b"%d" % n)
    rig.listener.close()
    heard = [bytes(connection.receive(deadline_seconds=DEADLINE_SECONDS)) for _ in range(3)]
    assert heard == [b"0", b"1", b"2"]
    with pytest.raises(errors.TransportClosed, match=r"version 3: the connection to .* is closed"):
        connection.receive(deadline_seconds=DEADLINE_SECONDS, what="version 3")
    with pytest.raises(errors.TransportClosed, match="is closed"):
        connection.send(b"push", deadline_seconds=DEADLINE_SECONDS)


def test_nothing_sent_to_one_server_arrives_at_the_next(rig: Rig) -> None:
    connection, _ = rig.introduce()
    connection.send(b"old", deadline_seconds=DEADLINE_SECONDS)
    rig.restart()
    with pytest.raises(errors.TransportClosed):
        connection.receive(deadline_seconds=DEADLINE_SECONDS)
    with pytest.raises(errors.TransportClosed):
        connection.send(b"old", deadline_seconds=DEADLINE_SECONDS)
    again = rig.connect()
    again.send(b"new", deadline_seconds=DEADLINE_SECONDS)
    received = frame(rig.listener)
    assert bytes(received.frame) == b"new"
    assert rig.listener.receive(deadline_seconds=0.1) is None


def test_who_comes_back_is_somebody_new(rig: Rig) -> None:
    peers = set()
    for _ in range(5):
        connection, peer = rig.introduce()
        connection.close()
        assert gone(rig.listener).peer == peer
        peers.add(peer)
    assert len(peers) == 5


def test_a_dropped_peer_is_told_and_nothing_more_is_heard_of_it(rig: Rig) -> None:
    bad, bad_peer = rig.introduce()
    good, good_peer = rig.introduce()
    bad.send(b"unread", deadline_seconds=DEADLINE_SECONDS)
    rig.listener.drop(bad_peer)
    with pytest.raises(errors.TransportClosed):
        bad.receive(deadline_seconds=DEADLINE_SECONDS)
    good.send(b"hello", deadline_seconds=DEADLINE_SECONDS)
    assert event(rig.listener) == Received(good_peer, memoryview(b"hello"))
    assert rig.listener.receive(deadline_seconds=0.1) is None


def test_what_a_dropped_peer_left_unread_makes_no_one_wait(
    make_rig: Callable[[TransportLimits], Rig],
) -> None:
    """Whether its end was known before it was dropped or not."""
    limits = TransportLimits(
        max_message_nbytes=1 << 20, max_unread_nbytes=2 << 20, max_unread_total_nbytes=4 << 20
    )
    rig = make_rig(limits)
    for n in range(12):
        connection, peer = rig.introduce()
        connection.send(bytes(1 << 20), deadline_seconds=DEADLINE_SECONDS)
        if n % 2:
            connection.close()
            ended = Deadline(0.3)  # not every transport says it before the owner reads
            while rig.listener.allows(peer, 0) and not ended.passed():
                time.sleep(0.005)
        rig.listener.drop(peer)
    connection, peer = rig.introduce()
    for n in range(8):
        connection.send(bytes([n]) * (1 << 20), deadline_seconds=DEADLINE_SECONDS)
        assert bytes(frame(rig.listener).frame[:1]) == bytes([n])


def test_a_reason_for_dropping_is_logged_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    _, peer = rig.introduce()
    rig.listener.drop(peer, "it said nonsense")
    rig.listener.drop(peer, "it said nonsense")
    assert caplog.messages == [f"peer {peer} was dropped: it said nonsense"]


def test_a_look_without_waiting_takes_what_is_there_one_by_one(rig: Rig) -> None:
    connection, _ = rig.introduce()
    for n in range(100):
        connection.send(b"%d" % n, deadline_seconds=DEADLINE_SECONDS)
    heard = [bytes(frame(rig.listener).frame)]  # waits, then the others are near
    deadline = Deadline(DEADLINE_SECONDS)
    while len(heard) < 100 and not deadline.passed():
        while isinstance(found := rig.listener.receive(deadline_seconds=0.0), Received):
            heard.append(bytes(found.frame))
    assert heard == [b"%d" % n for n in range(100)]


def test_a_busy_server_slows_its_workers_down_and_loses_nothing(
    make_rig: Callable[[TransportLimits], Rig],
) -> None:
    """Also when both sides have much to say, and more than the system's buffers hold."""
    rig = make_rig(TransportLimits(max_message_nbytes=1_000_000, max_unread_nbytes=4_000_000))
    connection, peer = rig.introduce()
    count = 300  # the last half alone is 90 MB: more than 32 MiB that a system may buffer

    def push() -> None:
        for n in range(count):
            connection.send(b"%d" % n * 200_000, deadline_seconds=DEADLINE_SECONDS)

    (pusher,) = in_threads(push)
    for n in range(count):
        if n % 50 == 0 and n <= count // 2:
            pusher.join(timeout=0.2)
            assert pusher.is_alive(), "it does not wait"
        assert bytes(frame(rig.listener).frame) == b"%d" % n * 200_000
        rig.listener.send(peer, b"update")
    pusher.join()
    for _ in range(count):
        assert bytes(connection.receive(deadline_seconds=DEADLINE_SECONDS)) == b"update"


def test_a_peer_that_does_not_read_is_gone_and_the_others_are_served(
    make_rig: Callable[[TransportLimits], Rig],
) -> None:
    rig = make_rig(TransportLimits(max_message_nbytes=1 << 20, max_unsent_nbytes=8 << 20))
    _, slow_peer = rig.introduce()
    good, good_peer = rig.introduce()
    update = bytes(1 << 20)
    lost = None
    for _ in range(100):
        rig.listener.send(slow_peer, update)
        rig.listener.send(good_peer, update)
        assert len(good.receive(deadline_seconds=DEADLINE_SECONDS)) == len(update)
        lost = lost or rig.listener.receive(deadline_seconds=0.0)
    assert isinstance(lost, PeerGone)
    assert lost.peer == slow_peer
    assert "it does not read" in lost.reason


def test_small_frames_that_nobody_reads_are_bounded_too(
    make_rig: Callable[[TransportLimits], Rig],
) -> None:
    rig = make_rig(TransportLimits(max_unsent_messages=10))
    _, peer = rig.introduce()
    for _ in range(1000):
        rig.listener.send(peer, bytes(50_000))
    lost = gone(rig.listener)
    assert lost.peer == peer
    assert "it does not read" in lost.reason


def test_who_floods_is_gone_and_the_others_are_served(
    make_rig: Callable[[TransportLimits], Rig],
) -> None:
    rig = make_rig(TransportLimits(max_messages_per_second=200))
    good, good_peer = rig.introduce()
    bad, bad_peer = rig.introduce()

    def flood() -> None:
        with pytest.raises(errors.TransportError):  # noqa: PT012
            while True:
                bad.send(b"x", deadline_seconds=DEADLINE_SECONDS)

    (flooder,) = in_threads(flood)
    while isinstance(found := event(rig.listener), Received):
        assert found.peer == bad_peer
    assert found == PeerGone(bad_peer, "it sent more than 200 messages in a second")
    good.send(b"still here", deadline_seconds=DEADLINE_SECONDS)
    assert event(rig.listener) == Received(good_peer, memoryview(b"still here"))
    flooder.join()


def test_threads_may_send_while_one_receives(rig: Rig) -> None:
    connection, peer = rig.introduce()
    count = 300

    def push() -> None:
        for _ in range(count):
            connection.send(b"push", deadline_seconds=DEADLINE_SECONDS)

    def update() -> None:
        for _ in range(count):
            rig.listener.send(peer, b"update")
            connection_heard.wait(DEADLINE_SECONDS)
            connection_heard.clear()

    def hear() -> None:
        for _ in range(2 * count):
            assert bytes(connection.receive(deadline_seconds=DEADLINE_SECONDS)) == b"update"
            connection_heard.set()
        done.append(True)

    connection_heard = threading.Event()
    done: list[bool] = []
    threads = in_threads(push, push, update, update, hear)
    for _ in range(2 * count):
        assert bytes(frame(rig.listener).frame) == b"push"
    for thread in threads:
        thread.join()
    assert done


def test_close_ends_a_wait(rig: Rig) -> None:
    connection, _ = rig.introduce()
    ended: list[str] = []

    def wait_for_frame() -> None:
        with pytest.raises(errors.TransportClosed):
            connection.receive(deadline_seconds=DEADLINE_SECONDS)
        ended.append("connection")

    def wait_for_event() -> None:
        with pytest.raises(errors.TransportClosed):  # noqa: PT012
            while True:
                rig.listener.receive(deadline_seconds=DEADLINE_SECONDS)
        ended.append("listener")

    threads = in_threads(wait_for_frame, wait_for_event)
    connection.close()
    connection.close()
    threads[0].join()
    rig.listener.close()
    rig.listener.close()
    threads[1].join()
    assert ended == ["connection", "listener"]


def test_there_is_room_for_so_many_peers(make_rig: Callable[[TransportLimits], Rig]) -> None:
    rig = make_rig(TransportLimits(max_peers=2))
    first, first_peer = rig.introduce()
    rig.introduce()
    # When it connects, or when it has spoken.
    with pytest.raises(errors.TransportClosed):  # noqa: PT012
        third = rig.connect()
        third.send(b"hello", deadline_seconds=DEADLINE_SECONDS)
        rig.listener.receive(deadline_seconds=0.2)
        third.receive(deadline_seconds=DEADLINE_SECONDS)
    first.close()
    assert gone(rig.listener).peer == first_peer
    rig.introduce()
