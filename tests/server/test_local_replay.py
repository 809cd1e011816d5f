"""Logs of rounds give the global weights of any version, bit for bit, whatever moves them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

import thinwire as tw
from tests.local_networks import Normed
from tests.server.local_workers import WORKERS, Worker, all_of
from tests.server.servers import RunningServer
from thinwire.server.settings import Rules

VERSIONS = 8

Outer = Callable[[nn.Module], Optimizer]


def sgd(net: nn.Module) -> Optimizer:
    return torch.optim.SGD(net.parameters(), lr=1.0)


def nesterov(net: nn.Module) -> Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.8, momentum=0.5, nesterov=True)


def delayed(net: nn.Module) -> Optimizer:
    return tw.optim.DelayedNesterov(net.parameters(), lr=0.8, momentum=0.5, delay=3)


CASES: dict[str, tuple[tw.Recipe, Outer]] = {
    "average": (tw.local_average(), sgd),
    "nesterov": (tw.diloco(lr=0.8, momentum=0.5), nesterov),
    "delayed": (tw.diloco(lr=0.8, momentum=0.5, delay=3), delayed),
}


def averaged(net: nn.Module) -> dict[str, Tensor]:
    """All that rounds move."""
    counted = {name for name, x in net.named_buffers() if not x.is_floating_point()}
    return {name: x.clone() for name, x in net.state_dict().items() if name not in counted}


def train(worker: Worker) -> dict[int, dict[str, Tensor]]:
    """The global weights of each version that this worker had at the end of a step."""
    noted: dict[int, dict[str, Tensor]] = {}
    with worker.client as client:
        client.attach(worker.net, worker.optimizer)
        step = 0
        while client.version < VERSIONS:
            worker.train(range(step, step + 1))
            step += 1
            with client.global_weights():
                noted[client.version] = averaged(worker.net)
    return noted


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rules", [Rules.synchronous(WORKERS), Rules(WORKERS, 1, 100)], ids=repr)
def test_replay_gives_the_global_weights_bit_for_bit(
    rules: Rules, name: str, tmp_path: Path
) -> None:
    recipe, make = CASES[name]
    folders = [tmp_path / "0", tmp_path / "1"]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(RunningServer(recipe, rules, log_dir=folder)) for folder in folders
        ]
        addresses = [server.address for server in servers]
        workers = [Worker(addresses, recipe, r, every=3, net=Normed()) for r in range(WORKERS)]
        found = all_of([partial(train, worker) for worker in workers])
    net = Normed()
    outer, reached = make(net), 0
    for version in sorted(found[1]):
        reached = tw.replay_log(net, outer, folders, start=reached, version=version)
        expected = found[1][version]
        moved = averaged(net)
        assert all(torch.equal(x, moved[n]) for n, x in expected.items()), version
    assert reached >= VERSIONS
    first = Normed().state_dict()
    assert not any(torch.equal(x, first[n]) for n, x in moved.items() if "running" in n)
