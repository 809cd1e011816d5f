"""``ServerStats``: what a server tells about itself."""

from __future__ import annotations

import thinwire as tw
from tests.server.processes import wait_until
from tests.server.servers import RunningServer, train
from thinwire.server.settings import Rules

RECIPE = tw.doublesqueeze(tw.OneBit())
STEPS = 3


def test_a_server_counts_what_its_workers_send() -> None:
    with RunningServer(RECIPE, Rules.synchronous(2)) as server:
        train([server.address], RECIPE, 2, STEPS)
        wait_until(lambda: server.service.done, "both workers to leave")
        stats = server.service.stats()
    pieces = stats.accepted_pieces // (2 * STEPS)
    assert pieces > 0
    assert stats.accepted_pieces == 2 * STEPS * pieces
    assert (stats.version, stats.done, stats.connected, stats.lost) == (STEPS, True, (), ())
    assert (stats.stale_pieces, stats.repeated_pieces, stats.refused_sessions) == (0, 0, 0)
    assert stats.received_nbytes > 0
    assert stats.sent_nbytes > 0


def test_a_server_that_was_just_started_has_done_nothing() -> None:
    with tw.Server("tcp://127.0.0.1:0", RECIPE, workers=2) as server:
        stats = server.stats()
    assert stats == tw.ServerStats(0, False, (), (), 0, 0, 0, 0, 0, 0, 0)


def test_they_print_as_a_short_table() -> None:
    stats = tw.ServerStats(1200, True, (0,), (1, 2), 30, 4, 5, 6, 7, 8_000_000, 9_000)
    assert str(stats).splitlines() == [
        "version    1,200, all workers are done or lost",
        "workers    connected: 0; lost: 1, 2",
        "pieces     30 accepted, 5 repeated",
        "network    9.0 kB sent, 8.0 MB received, with frames; 7 sessions refused",
        "left out   4 pieces refused as too old, 6 with an inf or nan",
    ]
