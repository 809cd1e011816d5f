"""transport/tcp/connection.py: many threads at one connection, and sends that time out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.transports import DEADLINE_SECONDS, Rig, frame, tcp, tls
from thinwire import errors
from thinwire.transport.base import Connection
from thinwire.transport.peer_limits import TransportLimits

LIMITS = TransportLimits(max_unread_messages=4)


@pytest.fixture(params=[tcp, tls], ids=["tcp", "tls"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made: Rig = request.param(LIMITS)
    yield made
    made.close()


def test_many_threads_send_whole_frames_each_in_its_order(rig: Rig) -> None:
    connection, _ = rig.introduce()
    threads, count = 8, 40

    def send(thread: int) -> None:
        for n in range(count):
            data = bytes([thread, n]) * (1 + 7919 * (thread + n) % 60_000)
            connection.send((data[:1], memoryview(data)[1:]), deadline_seconds=DEADLINE_SECONDS)

    with ThreadPoolExecutor(threads) as pool:
        sent = [pool.submit(send, thread) for thread in range(threads)]
        heard: list[list[int]] = [[] for _ in range(threads)]
        for _ in range(threads * count):
            data = bytes(frame(rig.listener).frame)
            thread, n = data[:2]
            assert data == bytes([thread, n]) * (1 + 7919 * (thread + n) % 60_000)
            heard[thread].append(n)
        for one in sent:
            one.result()
    assert heard == [list(range(count))] * threads


def test_sends_that_time_out_corrupt_nothing(rig: Rig) -> None:
    """Of many threads, while the server reads now and then; all that is heard was sent, once."""
    connection, _ = rig.introduce()
    done = threading.Event()

    def send(thread: int) -> tuple[list[bytes], list[bytes]]:
        sent: list[bytes] = []
        failed: list[bytes] = []
        while not done.is_set():
            data = b"%d %d " % (thread, len(sent) + len(failed)) + bytes([thread]) * 300_000
            try:
                connection.send(data, deadline_seconds=0.002 * thread)
                sent.append(data)
            except errors.TransportTimeout:
                failed.append(data)
        return sent, failed

    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(send, thread) for thread in range(4)]
        heard = [bytes(frame(rig.listener).frame) for _ in range(100)]
        done.set()
        sent = [data for one in results for data in one.result()[0]]
        failed = [data for one in results for data in one.result()[1]]
        last = pool.submit(connection.send, b"last", deadline_seconds=DEADLINE_SECONDS)
        while heard[-1] != b"last":
            heard.append(bytes(frame(rig.listener).frame))
        last.result()
    heard.pop()
    assert len(set(heard)) == len(heard)
    assert set(sent) <= set(heard) <= set(sent) | set(failed)


@pytest.mark.parametrize("work", ["receive", "send"])
def test_close_ends_what_other_threads_do(rig: Rig, work: str) -> None:
    connection, _ = rig.introduce()

    def endlessly() -> None:
        while True:
            if work == "send":
                connection.send(bytes(100_000), deadline_seconds=DEADLINE_SECONDS)
            else:
                connection.receive(deadline_seconds=DEADLINE_SECONDS)

    with ThreadPoolExecutor(3) as pool:
        ended = [pool.submit(endlessly) for _ in range(3)]
        threading.Event().wait(0.05)  # whenever it comes, it must end them
        connection.close()
        for one in ended:
            assert isinstance(one.exception(timeout=DEADLINE_SECONDS), errors.TransportClosed)
    with pytest.raises(errors.TransportClosed):
        connection.send(b"too late", deadline_seconds=DEADLINE_SECONDS)
    with pytest.raises(errors.TransportClosed):
        connection.receive(deadline_seconds=DEADLINE_SECONDS)


def test_both_ends_may_close_at_once(rig: Rig) -> None:
    for _ in range(20):
        connection, peer = rig.introduce()
        with ThreadPoolExecutor(3) as pool:
            works: list[Callable[[], object]] = [
                connection.close,
                lambda peer=peer: rig.listener.drop(peer),  # type: ignore[misc]  # its default
                lambda one=connection: one.send(bytes(50_000), deadline_seconds=1.0),  # type: ignore[misc]
            ]
            for one in [pool.submit(work) for work in works]:
                with suppress(errors.TransportClosed):
                    one.result(timeout=DEADLINE_SECONDS)
        while rig.listener.receive(deadline_seconds=0.0) is not None:
            pass


def test_threads_that_close_at_once_all_return(rig: Rig) -> None:
    """One drains what the server still sends, while another has closed the socket."""
    for _ in range(60):
        connection, peer = rig.introduce()
        together = threading.Barrier(4)

        def close(
            connection: Connection = connection, together: threading.Barrier = together
        ) -> None:
            together.wait(DEADLINE_SECONDS)
            connection.close()

        with ThreadPoolExecutor(4) as pool:
            closed = [pool.submit(close) for _ in range(3)]
            together.wait(DEADLINE_SECONDS)
            rig.listener.drop(peer)
            for one in closed:
                one.result(DEADLINE_SECONDS)
