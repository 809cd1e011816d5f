"""Bad networks between workers and servers: connections are cut, late, damaged and repeated.

In the end the weights are those of an undisturbed run, bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

import thinwire as tw
from tests.faults.proxy import Lane, Proxy
from tests.faults.training import RECIPES, WORKERS, start_servers, start_workers
from tests.impaired import Fault, Faults, ImpairedConnection
from tests.server.processes import ServerProcess
from tests.server.servers import RunningServer, loss_of, network, plain_sgd, virtual, weights
from tests.slow import first
from thinwire.server.settings import Rules
from thinwire.transport import tcp
from thinwire.transport.base import Connection

DISTURBANCES = 12


def through_proxies(stack: ExitStack, servers: Sequence[ServerProcess]) -> list[Proxy]:
    proxies = []
    for server in servers:
        host, _, port = server.address.removeprefix("tcp://").rpartition(":")
        proxies.append(stack.enter_context(Proxy(host, int(port))))
    return proxies


def reset(proxy: Proxy, lane: Lane, place: int) -> None:
    proxy.cut(reset=True)


def end_in_order(proxy: Proxy, lane: Lane, place: int) -> None:
    proxy.cut(reset=False)


def truncate(proxy: Proxy, lane: Lane, place: int) -> None:
    lane.cut_at = place


def flip(proxy: Proxy, lane: Lane, place: int) -> None:
    lane.flip_at = place


def duplicate(proxy: Proxy, lane: Lane, place: int) -> None:
    lane.repeat_at = place


def delay(proxy: Proxy, lane: Lane, place: int) -> None:
    lane.delay_seconds = place / 1e6


DISTURB = first([reset, end_in_order, truncate, flip, duplicate, delay])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("disturb", DISTURB, ids=lambda one: one.__name__)
def test_what_a_network_does_to_connections_changes_no_bit(
    disturb: Callable[[Proxy, Lane, int], None], tmp_path: Path
) -> None:
    recipe, steps = RECIPES["1 bit"], 300
    chance = random.Random(7)  # noqa: S311 - not for secrets
    with ExitStack() as stack:
        servers = start_servers(stack, tmp_path, recipe, 2)
        proxies = through_proxies(stack, servers)
        workers = start_workers(stack, [p.address for p in proxies], recipe, steps, tmp_path)
        for _ in range(DISTURBANCES):
            proxy = chance.choice(proxies)
            proxy.wait_for_traffic()
            lane = chance.choice([proxy.to_server, proxy.to_worker])
            disturb(proxy, lane, chance.randrange(20_000))
        results = [worker.result() for worker in workers]
    if disturb is not delay:
        assert sum(rejoined for _, rejoined in results) > 0
    assert [found for found, _ in results] == [virtual(recipe, WORKERS, steps)] * WORKERS


IMPAIRED = {
    "resets": Faults(script=(Fault.PASS,) * 10, reset=0.15),
    "duplicates": Faults(script=(Fault.PASS,) * 10, duplicate=0.2),
    "truncated": Faults(script=(Fault.PASS,) * 10, truncate=0.15),
    "flipped bits": Faults(script=(Fault.PASS,) * 10, flip=0.15),
}


@pytest.mark.parametrize("direction", ["sending", "receiving"])
@pytest.mark.parametrize("name", IMPAIRED)
def test_an_impaired_transport_changes_no_bit(name: str, direction: str, tmp_path: Path) -> None:
    """One worker, so that the faults are the same each time; the other's connection is fine."""
    recipe, steps = RECIPES["dgc"], 40
    seeds = count()

    def connect(address: str, seconds: float) -> Connection:
        inner = tcp.connect(address, deadline_seconds=seconds)
        return ImpairedConnection(inner, seed=next(seeds), **{direction: IMPAIRED[name]})

    net = network()
    with RunningServer(recipe, Rules.synchronous(1), log_dir=tmp_path) as server:
        client = tw.Client(
            [server.address], recipe, rank=0, workers=1, connect=connect, deadline_seconds=20.0
        )
        with client:
            client.attach(net, plain_sgd(net))
            for step in range(steps):
                net.zero_grad()
                loss_of(net, step, 0).backward()  # type: ignore[no-untyped-call]
                client.step()
            rejoined = client.stats().rejoined
        assert server.error is None
    assert rejoined > 0 or name == "duplicates"
    assert weights(net) == virtual(recipe, 1, steps)
