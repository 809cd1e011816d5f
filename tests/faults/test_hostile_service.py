"""Hostile clients at a real server, while honest workers train: those do not notice.

The weights are those of an undisturbed run, bit for bit; the server's memory is bounded; its log
has a line for what was refused, and not many.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from tests.faults import hostilities as h, wire
from tests.faults.hostilities import RECIPE, Target, repeat
from tests.server.processes import Process, ServerProcess, wait_until
from tests.server.servers import loss_of, network, plain_sgd, virtual, weights
from tests.transports import pair
from thinwire.keys.settings import ServerKeys, WorkerKeys
from thinwire.transport.peer_limits import MIB

HONEST = 2
STEPS = 40

MOST_NBYTES = 64 * MIB
"""What the server's memory may grow by, from its start to the peak.

Training alone takes some 11 MiB, and all that strangers may have unread is 4 MiB. A description
that is read takes several times its size.
"""

LINES_IN_TEN_SECONDS = 3 * 21
"""Of refusals by the transport, refusals by the service, and comings and goings."""


@dataclass(frozen=True)
class Hostility:
    """``line`` is what the server's log must say of it; it goes on ``after`` this line."""

    round: Callable[[Target], None]
    line: str
    after: str = ""


NO_HELLO = "dropped: what it sent is no hello of Thinwire"
EXCESS = "a connection was dropped|before it was admitted|unadmitted peers sent"

STRANGERS = {
    "plain text": Hostility(h.plain_text, NO_HELLO),
    "random bytes": Hostility(h.random_bytes, NO_HELLO),
    "random frames": Hostility(h.random_frames, r"refused connection \d+, .* frame: "),
    "bad checksums": Hostility(h.bad_checksums, "frame: checksum"),
    "100,000 bad frames": Hostility(h.flood, "refused connection .* frame: starts with"),
    "huge sizes": Hostility(h.huge_sizes, "it sends 4294967294 bytes, the limit is"),
    "heartbeats": Hostility(h.heartbeats, "messages before it was admitted"),
    "half frames": Hostility(h.half_frames, "unadmitted peers sent more than"),
    "half hellos": Hostility(h.half_hellos, "its certificate has 65535 bytes"),
    "coming and going": Hostility(h.come_and_go, "frame: . bytes, the header alone has 40"),
    "taking all places": Hostility(h.take_places, "has not joined within"),
    "join undescribed": Hostility(h.join_undescribed, "say what you train before you join"),
    "push unjoined": Hostility(h.push_unjoined, "frame of kind 3 before a Join"),
    "absurd models": Hostility(h.absurd_models, "4294967295 servers, the limit"),
    "huge description": Hostility(h.oversized_description, EXCESS),
    "wrong numbers": Hostility(h.wrong_numbers, "this is another run than yours"),
    "forged lines": Hostility(h.forged_lines, r"yours is '\\nWARNING worker 0 is lost\\r\\x1b"),
    "rank in use": Hostility(h.rank_in_use, "worker 1 has joined already", after="worker 1 joined"),
}
ENDLESS = {
    "bad frames": b"".join(wire.frame(bytes([n]) * 40) for n in range(200)) * 5,
    "tiny frames": wire.frame(b"") * 10_000,
    "heartbeats": wire.HEARTBEAT * 10_000,
    "MiBs": wire.frame(bytes(MIB)),
}
WITH_KEYS = {
    "unknown key": Hostility(h.unknown_key, "its key is not on the list"),
    "no key": Hostility(h.without_keys, "it has no keys"),
    "stolen certificate": Hostility(h.stolen_certificate, "a connection was refused: "),
    "plain text": STRANGERS["plain text"],
    "random bytes": STRANGERS["random bytes"],
}
MEMBERS = {
    "bad pushes": Hostility(h.bad_pushes, "refused connection .* push of worker 2"),
    "stale pushes": Hostility(h.stale_pushes, r"worker 2 is away: \?WARNING"),
    "catching up": Hostility(h.catch_ups, "worker 2 joined"),
    "catching up, unread": Hostility(h.catch_ups_unread, "worker 2 joined"),
    "flood of reports": Hostility(h.flood_of_reports, "messages in a second"),
    "never reading": Hostility(h.never_read, "worker 2 joined"),
    "joining and leaving": Hostility(h.join_and_leave, "worker 2 is away: x"),
}


def train(
    address: str, rank: int, workers: int, steps: int, keys: WorkerKeys | None, folder: Path
) -> tuple[list[bytes], int]:
    """The last weights of an honest worker, and how often it had to join again.

    It leaves when it may: when all have left there is no server to be looked at.
    """
    net = network()
    with tw.Client(
        [address], RECIPE, rank=rank, workers=workers, keys=keys, deadline_seconds=60.0
    ) as client:
        client.attach(net, plain_sgd(net))
        for step in range(steps):
            net.zero_grad()
            loss_of(net, step, rank).backward()  # type: ignore[no-untyped-call]
            client.step()
        (folder / f"trained {rank}").touch()
        wait_until((folder / "leave").exists, "it may leave")
        return weights(net), client.stats().rejoined


def memory(server: ServerProcess, name: str) -> int:
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) << 10


def disturbed(
    folder: Path,
    hostility: Hostility | None,
    *,
    workers: int = HONEST,
    steps: int = STEPS,
    restart: bool = False,
    keys: tuple[ServerKeys, WorkerKeys] | None = None,
    **options: Any,
) -> list[list[bytes]]:
    """Train while somebody does that; the weights of the honest workers."""
    theirs, ours = keys or (None, None)
    began = time.monotonic()
    with ExitStack() as stack:
        server = stack.enter_context(
            ServerProcess(folder, RECIPE, workers=workers, keys=theirs, **options)
        )
        wait_until(lambda: (folder / "log").exists(), "the server is there")
        if restart:
            segment = folder / "log" / "segment-000000000000"
            wait_until(lambda: segment.exists() and segment.stat().st_size > 0, "its log")
            server.kill()
            server.start()
        first = memory(server, "VmRSS")
        target = Target(server.address, workers, rank=workers - 1, keys=ours)
        hostile = _start(stack, hostility, target) if hostility and not hostility.after else None
        if hostile is not None and workers == HONEST:  # members need somebody's history
            assert hostility is not None
            _wait_for_line(server, hostility)
        honest = [
            stack.enter_context(Process(train, server.address, rank, workers, steps, ours, folder))
            for rank in range(HONEST)
        ]
        if hostility is not None:
            wait_until(lambda: hostility.after in server.log(), hostility.after)
            hostile = hostile or _start(stack, hostility, target)
        wait_until(lambda: _all_trained(folder, honest), "training")
        for worker in honest:
            assert worker.process.is_alive(), worker.result()
        assert hostile is None or hostile.process.is_alive(), hostile.result()
        grown = memory(server, "VmHWM") - first
        if hostility is not None and hostile is not None:
            _check_log(server, hostility, began)
        (folder / "leave").touch()
        results = [worker.result() for worker in honest]
    print(f"\n{folder.parent.name}: {grown / MIB:.1f} MiB more, {time.monotonic() - began:.1f} s")
    assert [rejoined for _, rejoined in results] == [0] * HONEST
    assert grown < MOST_NBYTES
    return [found for found, _ in results]


def _all_trained(folder: Path, honest: list[Process]) -> bool:
    """Or one of them has failed, whose result says why."""
    done = all((folder / f"trained {rank}").exists() for rank in range(HONEST))
    return done or not all(worker.process.is_alive() for worker in honest)


def _start(stack: ExitStack, hostility: Hostility, target: Target) -> Process:
    return stack.enter_context(Process(repeat, hostility.round, target))


def _wait_for_line(server: ServerProcess, hostility: Hostility) -> None:
    wait_until(
        lambda: re.search(hostility.line, server.log()) is not None, f"{hostility.line} is logged"
    )


def _check_log(server: ServerProcess, hostility: Hostility, began: float) -> None:
    _wait_for_line(server, hostility)
    most = LINES_IN_TEN_SECONDS * (1 + (time.monotonic() - began) / 10)
    lines = server.log().splitlines()
    assert len(lines) < most
    assert not [line for line in lines if line.startswith("WARNING worker 0 is lost")]


@pytest.fixture(scope="module")
def undisturbed() -> list[list[bytes]]:
    return [virtual(RECIPE, HONEST, STEPS)] * HONEST


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers(name: str, tmp_path: Path, undisturbed: list[list[bytes]]) -> None:
    assert disturbed(tmp_path / "server", STRANGERS[name]) == undisturbed


@pytest.mark.parametrize("name", ENDLESS)
def test_a_flood_without_end(name: str, tmp_path: Path, undisturbed: list[list[bytes]]) -> None:
    """It took a GiB in some seconds while those who were cut could come back at once."""
    flood = Hostility(partial(h.pour_on, data=ENDLESS[name]), EXCESS)
    assert disturbed(tmp_path / "server", flood) == undisturbed


@pytest.mark.parametrize("name", WITH_KEYS)
def test_strangers_without_the_right_key(
    name: str, tmp_path: Path, undisturbed: list[list[bytes]]
) -> None:
    assert disturbed(tmp_path / "server", WITH_KEYS[name], keys=pair()) == undisturbed


QUORUM: dict[str, Any] = {"workers": 3, "quorum": HONEST, "staleness": 0, "on_loss": "continue"}
"""The hostile worker is the third: it is one of them, but no version needs it."""


@pytest.fixture(scope="module")
def quorum_of_two(tmp_path_factory: pytest.TempPathFactory) -> list[list[bytes]]:
    return disturbed(tmp_path_factory.mktemp("twin") / "server", None, **QUORUM)


@pytest.mark.parametrize("name", MEMBERS)
def test_members(name: str, tmp_path: Path, quorum_of_two: list[list[bytes]]) -> None:
    assert quorum_of_two[0] == quorum_of_two[1]
    assert disturbed(tmp_path / "server", MEMBERS[name], **QUORUM) == quorum_of_two


def test_a_member_with_a_key(tmp_path: Path, quorum_of_two: list[list[bytes]]) -> None:
    hostility = MEMBERS["bad pushes"]
    assert disturbed(tmp_path / "server", hostility, keys=pair(), **QUORUM) == quorum_of_two


def test_old_epochs(tmp_path: Path, quorum_of_two: list[list[bytes]]) -> None:
    hostility = Hostility(h.old_epochs, r"session: frame of run \d+, epoch 1, worker 2")
    assert disturbed(tmp_path / "server", hostility, restart=True, **QUORUM) == quorum_of_two


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "hostility",
    [
        Hostility(partial(h.flood, count=1_000_000), "frame: starts with"),
        Hostility(partial(h.come_and_go, count=10_000), "frame: . bytes, the header"),
    ],
    ids=["a million bad frames", "10,000 connections"],
)
def test_for_long(hostility: Hostility, tmp_path: Path) -> None:
    steps = 1500
    found = disturbed(tmp_path / "server", hostility, steps=steps)
    assert found == [virtual(RECIPE, HONEST, steps)] * HONEST
