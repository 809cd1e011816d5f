"""transport/peer_limits.py and clock.py."""

from __future__ import annotations

from dataclasses import fields

import pytest

from thinwire.clock import Deadline
from thinwire.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from thinwire.transport.peer_limits import Allowance, TransportLimits
from thinwire.wire.frame import HEADER_NBYTES
from thinwire.wire.limits import Limits


def test_the_largest_frame_is_a_message() -> None:
    assert TransportLimits().max_message_nbytes == Limits().max_body_nbytes + HEADER_NBYTES


@pytest.mark.parametrize("name", [field.name for field in fields(TransportLimits)])
@pytest.mark.parametrize("value", [0, -1])
def test_each_limit_is_positive(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=name):
        TransportLimits(**{name: value})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_unsent_nbytes": 999}, "max_unsent_nbytes must be at least max_message_nbytes, 1000"),
        ({"max_unread_nbytes": 999}, "at least max_message_nbytes, 1000, got 999"),
        ({"max_unread_total_nbytes": 4999, "max_unread_nbytes": 5000}, "max_unread_nbytes, 5000"),
        ({"max_nbytes_per_second": 1999, "burst_seconds": 0.5}, "2 times max_message_nbytes, 2000"),
        ({"silence_seconds": 9.9, "heartbeat_seconds": 5.0}, "2 times heartbeat_seconds, 10"),
    ],
)
def test_limits_fit_together(settings: dict[str, float], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        TransportLimits(**{"max_message_nbytes": 1000, **settings})  # type: ignore[arg-type]  # names vary


def test_a_message_over_the_limit_is_our_own_fault() -> None:
    TransportLimits(max_message_nbytes=10).check_message(10)
    with pytest.raises(LocalProtocolError, match="11 bytes, the limit is 10"):
        TransportLimits(max_message_nbytes=10).check_message(11)


def test_a_second_of_messages_may_come_at_once_and_then_as_time_goes_by() -> None:
    allowance = Allowance(TransportLimits(max_messages_per_second=10), now=5.0)
    for _ in range(10):
        allowance.take(1, now=5.0)
    with pytest.raises(RemoteProtocolError, match="more than 10 messages in a second"):
        allowance.take(1, now=5.0)
    allowance.take(1, now=5.5)
    for _ in range(10):
        allowance.take(1, now=99.0)


def test_a_burst_may_be_longer_or_shorter() -> None:
    limits = TransportLimits(max_messages_per_second=10, burst_seconds=0.3)
    allowance = Allowance(limits, now=0.0)
    for _ in range(3):
        allowance.take(1, now=9.0)
    with pytest.raises(RemoteProtocolError):
        allowance.take(1, now=9.0)


def test_bytes_count_too() -> None:
    limits = TransportLimits(max_message_nbytes=100, max_nbytes_per_second=100)
    allowance = Allowance(limits, now=0.0)
    allowance.take(100, now=0.0)
    allowance.take(50, now=0.5)
    with pytest.raises(RemoteProtocolError, match="more than 100 bytes in a second"):
        allowance.take(2, now=0.51)


@pytest.mark.parametrize("seconds", [-0.1, float("inf"), float("nan")])
def test_a_wait_has_an_end(seconds: float) -> None:
    with pytest.raises(ConfigError, match="deadline_seconds"):
        Deadline(seconds)
    assert Deadline(0.0).passed()
    assert not Deadline(1000.0).passed()
