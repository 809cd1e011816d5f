"""transport/zeromq/inbox.py and inbox.py: what is unread, on either side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thinwire.transport.base import PeerGone, PeerId, Received
from thinwire.transport.peer_limits import TransportLimits
from thinwire.transport.zeromq.inbox import Flow, Inbox

LIMITS = TransportLimits(
    max_message_nbytes=10, max_unread_nbytes=40, max_unread_total_nbytes=60, max_unread_messages=5
)
ONE, TWO = PeerId(1), PeerId(2)


def flows() -> tuple[Flow, Flow]:
    return Flow(in_nbytes=100, in_messages=8), Flow(in_nbytes=100, in_messages=8)


def test_what_was_told_is_no_longer_unread() -> None:
    here, there = flows()
    for _ in range(3):
        here.sent(10)
    assert here.unread() == (30, 3)
    there.read(10)
    assert not there.due()
    there.read(10)
    assert there.due(), "a quarter of 8 messages"
    assert here.take_credits(there.credits())
    assert here.unread() == (10, 1)
    assert not there.due()


def test_a_quarter_of_the_bytes_is_told_too() -> None:
    _, there = flows()
    there.read(25)
    assert there.due()


@pytest.mark.parametrize("counts", [(21, 2), (20, 3), (0, 0), (10, 0)])
def test_nobody_has_read_what_was_not_sent_nor_unreads_anything(counts: tuple[int, int]) -> None:
    here, there = flows()
    here.sent(10)
    here.sent(10)
    counted = counts[0].to_bytes(8, "little") + counts[1].to_bytes(8, "little")
    assert not here.take_credits(counted)
    assert here.unread() == (20, 2)
    there.read(10)
    counted = there.credits()
    assert here.take_credits(counted)
    assert not here.take_credits(counted)


def frame(peer: PeerId, nbytes: int) -> Received:
    return Received(peer, memoryview(bytes(nbytes)))


def test_an_inbox_keeps_the_order_and_forgets_one_peer_alone() -> None:
    inbox = Inbox(LIMITS)
    events: list[Received | PeerGone] = [
        frame(ONE, 3),
        frame(TWO, 4),
        PeerGone(ONE, "why"),
        frame(TWO, 5),
    ]
    for event in events:
        inbox.add(event)
    assert inbox.take() == events[0]
    inbox.remove(ONE)
    assert [inbox.take(), inbox.take()] == [events[1], events[3]]
    assert not inbox


def test_who_has_too_much_unread_has_to_go() -> None:
    inbox = Inbox(LIMITS)
    for _ in range(4):
        inbox.add(frame(ONE, 10))
        assert inbox.excess(ONE) is None
    inbox.add(frame(ONE, 1))
    assert inbox.excess(ONE) == (ONE, "it sends on while 5 messages, 41 bytes, are unread")
    for _ in range(5):
        inbox.add(frame(TWO, 1))
    assert inbox.excess(TWO) is None
    inbox.add(frame(TWO, 0))
    assert inbox.excess(TWO) == (TWO, "it sends on while 6 messages, 5 bytes, are unread")


def test_if_all_have_too_much_it_is_the_one_with_the_most() -> None:
    inbox = Inbox(replace(LIMITS, max_unread_total_nbytes=40))
    inbox.add(frame(ONE, 30))
    inbox.add(frame(TWO, 11))
    found = inbox.excess(TWO)
    assert found is not None
    assert found[0] == ONE
    inbox.add(PeerGone(ONE, "why"))
    inbox.remove_frames(ONE)
    assert inbox.excess(TWO) is None
    assert [inbox.take(), inbox.take()] == [frame(TWO, 11), PeerGone(ONE, "why")]
