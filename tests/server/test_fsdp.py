"""Sharded networks over parameter servers: those of each part compute what its replicas would."""

from __future__ import annotations

from contextlib import ExitStack

import torch.distributed as dist

from tests.distributed.launch import run
from tests.distributed.test_fsdp import RECIPES, Sharded
from tests.server.servers import RunningServer
from thinwire.server.settings import Rules

STEPS = 5


def train(servers: list[list[str]]) -> list[bytes]:
    if not servers:
        return Sharded("1 bit").train(range(STEPS))
    part = dist.get_rank() % len(servers)
    trainer = Sharded("1 bit", exchange="servers", servers=servers[part])
    weights = trainer.train(range(STEPS))
    trainer.handle.close()
    return weights


def test_servers_of_each_part_average_as_replicas_do() -> None:
    recipe, _ = RECIPES["1 bit"]
    assert recipe is not None
    rules = Rules.synchronous(2)
    with ExitStack() as stack:
        servers = [
            [stack.enter_context(RunningServer(recipe, rules)).address for _ in range(2)]
            for _ in range(2)
        ]
        served = run(train, servers, ranks=4)
    assert all(one == served[0] for one in served)
    assert served == run(train, [], ranks=4)
