"""Who is waited for, who is done and who is lost: the same after a restart."""

from __future__ import annotations

import pytest

import thinwire as tw
from thinwire.model import describe, digest_of
from thinwire.server.journal import Journal
from thinwire.server.log.recovery import Recovery
from thinwire.server.log.snapshot import Snapshot
from thinwire.server.settings import Rules
from thinwire.server.snapshot_state import snapshot_of
from thinwire.server.training import Training
from thinwire.wire.messages import Join, Reason, encode

DESCRIPTION = describe([tw.Key("a", (3,))], tw.dense(), server=0, servers=1)
DESCRIBED = encode(DESCRIPTION, run=7, epoch=1, worker=0, step=0)
JOIN = Join(3, 1, digest_of(DESCRIPTION, 3), 0)


def training(*reasons: Reason) -> Training:
    """Of three workers, of whom the first have left for these reasons."""
    found = Training(tw.dense(), Rules.synchronous(3), seed=0)
    found.adopt(DESCRIPTION, DESCRIBED)
    for worker, reason in enumerate(reasons):
        found.leave(worker, reason)
    return found


def restored(snapshot: Snapshot) -> Training:
    found = Training(tw.dense(), Rules.synchronous(3), seed=0)
    found.recover(Recovery(snapshot, 0, (), None, ()), Journal())
    return found


@pytest.mark.parametrize("last", [(), (Reason.DONE,), (Reason.LOST,)], ids=str)
def test_a_snapshot_tells_who_is_lost_from_who_is_done(last: tuple[Reason, ...]) -> None:
    before = training(Reason.DONE, Reason.LOST, *last)
    said, lost = before.handshake(), before.lost
    after = restored(snapshot_of(before.running(), said, lost, run=7, epoch=1))
    assert after.running().absent == before.running().absent
    assert after.lost == before.lost == {1} | ({2} if last == (Reason.LOST,) else set())
    assert after.is_over == before.is_over == bool(last)


def test_a_snapshot_of_an_earlier_release_says_only_who_is_absent() -> None:
    counters = {"absent 0": 1, "absent 1": 1, "absent 2": 1}
    after = restored(Snapshot(7, 1, versions={"0": 4}, counters=counters, pending=(DESCRIBED,)))
    assert (after.is_over, after.lost, after.version) == (True, set(), 4)


def test_when_all_are_expected_back_none_of_them_is_lost() -> None:
    """Earlier releases went on with the first worker that came to a run that had ended."""
    run = training(Reason.LOST, Reason.LOST, Reason.DONE)
    assert run.is_over
    run.enter(JOIN, encode(JOIN, run=0, epoch=0, worker=2, step=0))
    assert (run.is_over, run.lost, run.running().absent) == (False, set(), set())
