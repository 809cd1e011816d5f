"""Workers that begin with different weights are noticed: their replicas would differ for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import thinwire as tw
from tests.reference.crc32c import crc32c
from tests.server import servers
from tests.server.servers import RunningServer, plain_sgd
from thinwire.client.join import checksums_of
from thinwire.server.settings import Rules, ServiceSettings

RECIPE = tw.dense()
WORDS = (
    "your 1.weight is not what this run began with: build the network with the same seed on all "
    "workers, or load the same checkpoint"
)


def network(seed: int = 3) -> nn.Module:
    """Only the last layer differs by ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = nn.Linear(4, 4)
        torch.manual_seed(seed)
        return nn.Sequential(first, nn.Linear(4, 2))


def attach(server: RunningServer, net: nn.Module, *, rank: int = 0, version: int = 0) -> tw.Client:
    client = tw.Client([server.address], RECIPE, rank=rank, workers=2, deadline_seconds=10.0)
    client.attach(net, plain_sgd(net), version=version)
    return client


def abandon(client: tw.Client) -> None:
    """Go, to come back."""
    with pytest.raises(InterruptedError), client:
        raise InterruptedError


def refused(server: RunningServer, net: nn.Module, *, rank: int) -> None:
    with pytest.raises(tw.Refused) as error:
        attach(server, net, rank=rank)
    assert str(error.value) == f"{server.address}: {WORDS}"


def train(client: tw.Client, net: nn.Module, steps: int) -> None:
    for _ in range(steps):
        net.zero_grad()
        net(torch.ones(3, 4)).sum().backward()
        client.step()


def test_another_seed_is_refused_and_the_same_one_is_not() -> None:
    with (
        RunningServer(RECIPE, Rules.synchronous(2)) as server,
        attach(server, network(), rank=1),
    ):
        refused(server, network(4), rank=0)
        attach(server, network(), rank=0).close()


def test_nobody_relies_on_the_weights_of_one_that_left_before_it_pushed() -> None:
    with RunningServer(RECIPE, Rules.synchronous(2)) as server:
        abandon(attach(server, network(4)))
        with attach(server, network(), rank=1):
            refused(server, network(4), rank=0)


@pytest.mark.parametrize("snapshot_nbytes", [1, 1 << 30])
def test_a_server_that_is_restarted_remembers(tmp_path: Path, snapshot_nbytes: int) -> None:
    rules, settings = Rules(2, 1, 100), ServiceSettings(snapshot_nbytes=snapshot_nbytes)
    with RunningServer(RECIPE, rules, log_dir=tmp_path, settings=settings) as server:
        net = network()
        client = attach(server, net)
        train(client, net, 12)
        at_twelve = client.version, net.state_dict()
        abandon(client)
        server.stop()
        assert bool(list(tmp_path.glob("snapshot-*"))) == (snapshot_nbytes == 1)
        server.start()
        refused(server, network(4), rank=0)
        attach(server, network(), rank=1).close()
        later = network(4)
        later.load_state_dict(at_twelve[1])
        attach(server, later, rank=0, version=at_twelve[0]).close()


def test_clients_that_are_cut_off_at_version_0_come_back(tmp_path: Path) -> None:
    with RunningServer(RECIPE, Rules.synchronous(2), log_dir=tmp_path) as server:

        def restart(rank: int, step: int) -> None:
            if (rank, step) == (0, 0):
                server.stop()
                server.start()

        first, second = servers.train([server.address], RECIPE, 2, 3, at_step=restart)
    assert first == second == servers.virtual(RECIPE, 2, 3)


def test_checksums_are_of_elements_whatever_their_layout_and_type() -> None:
    x = torch.arange(24.0).view(1, 2, 3, 4)
    [plain] = checksums_of([x])
    assert plain == crc32c(x.numpy().tobytes())
    assert checksums_of([x.to(memory_format=torch.channels_last), x[..., :0]]) == (plain, 0)
    assert checksums_of([x.bfloat16()]) != (plain,)
    assert checksums_of([torch.tensor(1.0)]) == checksums_of([nn.Parameter(torch.ones(1))])
