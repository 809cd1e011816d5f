"""transport/impaired.py: each fault does what it says, and again for the same seed."""

from __future__ import annotations

import pytest

from tests.impaired import Fault, Faults, ImpairedConnection
from tests.transports import DEADLINE_SECONDS, frame, inproc
from thinwire.errors import ConfigError, TransportClosed
from thinwire.transport.base import PeerId
from thinwire.transport.peer_limits import TransportLimits

FRAMES = [b"%d" % n * 10 for n in range(6)]
LIMITS = TransportLimits(max_unread_messages=1000)


def sent(faults: Faults, *, seed: int = 1, frames: list[bytes] = FRAMES) -> list[bytes]:
    """What arrives of ``frames``, sent by a worker."""
    rig = inproc(LIMITS)
    connection = ImpairedConnection(rig.connect(), seed=seed, sending=faults)
    for data in frames:
        connection.send((data,), deadline_seconds=DEADLINE_SECONDS)
    arrived = []
    while (event := rig.listener.receive(deadline_seconds=0.0)) is not None:
        arrived.append(bytes(getattr(event, "frame", b"gone")))
    rig.close()
    return arrived


def received(faults: Faults) -> list[bytes]:
    """The same for frames that a worker receives; the last two are not touched."""
    rig = inproc(LIMITS)
    inner, peer = rig.introduce()
    connection = ImpairedConnection(inner, seed=1, receiving=faults)
    for data in [*FRAMES, b"end"]:
        rig.listener.send(PeerId(peer), data)
    arrived: list[bytes] = []
    while b"end" not in arrived:
        arrived.append(bytes(connection.receive(deadline_seconds=DEADLINE_SECONDS)))
    rig.close()
    return arrived[:-1]


def script(*faults: Fault) -> Faults:
    return Faults(script=faults)


def test_without_faults_everything_arrives() -> None:
    assert sent(Faults()) == FRAMES
    assert received(Faults()) == FRAMES


@pytest.mark.parametrize(
    ("fault", "order"),
    [
        (Fault.PASS, [0, 1, 2, 3, 4, 5]),
        (Fault.DROP, [0, 2, 3, 4, 5]),
        (Fault.DUPLICATE, [0, 1, 1, 2, 3, 4, 5]),
        (Fault.HOLD, [0, 2, 1, 3, 4, 5]),
    ],
)
def test_each_fault_in_both_directions(fault: Fault, order: list[int]) -> None:
    faults = script(Fault.PASS, fault)
    assert sent(faults) == received(faults) == [FRAMES[n] for n in order]


def test_a_truncated_frame_lost_its_end() -> None:
    damaged = sent(script(Fault.TRUNCATE))[0]
    assert len(damaged) < len(FRAMES[0])
    assert FRAMES[0].startswith(damaged)


def test_a_flipped_frame_differs_in_one_bit() -> None:
    damaged = sent(script(Fault.FLIP))[0]
    difference = int.from_bytes(damaged, "big") ^ int.from_bytes(FRAMES[0], "big")
    assert difference.bit_count() == 1


def test_a_reset_ends_the_connection_for_both() -> None:
    rig = inproc()
    inner, _ = rig.introduce()
    connection = ImpairedConnection(inner, seed=1, sending=script(Fault.PASS, Fault.RESET))
    connection.send(b"arrives", deadline_seconds=DEADLINE_SECONDS)
    with pytest.raises(TransportClosed, match="was reset"):
        connection.send(b"is lost", deadline_seconds=DEADLINE_SECONDS)
    with pytest.raises(TransportClosed):
        connection.receive(deadline_seconds=DEADLINE_SECONDS)
    assert bytes(frame(rig.listener).frame) == b"arrives"
    rig.close()


def test_the_seed_decides() -> None:
    faults = Faults(drop=0.2, duplicate=0.2, hold=0.1, truncate=0.1, flip=0.1)
    frames = [b"%d" % n * 100 for n in range(300)]
    assert sent(faults, frames=frames) == sent(faults, frames=frames)
    assert sent(faults, frames=frames) != sent(faults, frames=frames, seed=2)


def test_faults_are_as_frequent_as_asked() -> None:
    assert 120 < len(sent(Faults(drop=0.5), frames=[b"x"] * 300)) < 180
    assert sent(Faults(drop=1.0)) == []
    assert sent(Faults(duplicate=1.0)) == [data for data in FRAMES for _ in range(2)]


@pytest.mark.parametrize("chances", [{"drop": -0.1}, {"drop": 0.6, "flip": 0.6}])
def test_impossible_probabilities_are_refused(chances: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="probabilities"):
        Faults(**chances)  # type: ignore[arg-type]  # the values are all floats
