"""Synchronous servers are the virtual cluster, bit for bit, also when they are restarted."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

import thinwire as tw
from tests.server.servers import RunningServer, train, virtual
from thinwire.server.settings import Rules

RECIPES = {
    "1 bit": tw.doublesqueeze(tw.OneBit()),
    "dgc": tw.dgc(0.02, momentum=0.9),
    "dither": tw.clan(tw.Dither(4)),
    "dense": tw.dense(),
}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("name", RECIPES)
def test_servers_compute_what_the_virtual_cluster_computes(name: str, servers: int) -> None:
    recipe = RECIPES[name]
    with ExitStack() as stack:
        running = [
            stack.enter_context(RunningServer(recipe, Rules.synchronous(3))) for _ in range(servers)
        ]
        found = train([one.address for one in running], recipe, 3, 6)
        assert all(server.error is None for server in running)
    assert found == [virtual(recipe, 3, 6)] * 3


@pytest.mark.parametrize("name", ["1 bit", "dgc"])
def test_a_server_that_is_restarted_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    recipe, lock = RECIPES[name], threading.Lock()
    restarted: set[int] = set()
    with RunningServer(recipe, Rules.synchronous(2), log_dir=tmp_path) as server:

        def restart(rank: int, step: int) -> None:
            with lock:
                if step in (2, 4, 5) and step not in restarted:
                    restarted.add(step)
                    server.stop()
                    server.start()

        found = train([server.address], recipe, 2, 8, at_step=restart)
        assert server.service.members.epoch == 4
    assert restarted == {2, 4, 5}
    assert found == [virtual(recipe, 2, 8)] * 2
