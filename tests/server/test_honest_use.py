"""What honest users do, and must neither lose gradients nor get stuck by."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from tests.server.processes import wait_until
from tests.server.servers import RunningServer, loss_of, network, plain_sgd, virtual, weights
from thinwire.server.settings import Rules

RECIPE = tw.doublesqueeze(tw.OneBit())
ALONE = Rules.synchronous(1)


def backward(net: nn.Module, step: int, rank: int = 0) -> None:
    loss_of(net, step, rank).backward()  # type: ignore[no-untyped-call]


def train_and_fail(addresses: list[str]) -> None:
    """Three steps, and an error, so that servers wait for this worker to come back."""
    net = network()
    with tw.Client(addresses, RECIPE, rank=0, workers=1) as client:
        client.attach(net, plain_sgd(net))
        for step in range(3):
            net.zero_grad()
            backward(net, step)
            client.step()
        raise KeyError


@contextmanager
def attached(
    server: RunningServer, recipe: tw.Recipe = RECIPE, **options: Any
) -> Iterator[tuple[nn.Module, tw.Client]]:
    net = network()
    options = {"rank": 0, "workers": 1, "deadline_seconds": 20.0} | options
    with tw.Client([server.address], recipe, **options) as client:
        client.attach(net, plain_sgd(net))
        yield net, client


def test_catching_up_leaves_no_gradient_behind() -> None:
    """The first backward would add to it, and push it again."""
    with RunningServer(RECIPE, ALONE) as server:
        with pytest.raises(KeyError):
            train_and_fail([server.address])
        with attached(server) as (net, client):
            assert client.version == 3
            assert all(p.grad is None for p in net.parameters())


def test_state_and_statistics_right_after_a_step_change_nothing() -> None:
    """The background looks at residuals too, to report them."""

    def residuals(look: bool) -> Any:
        net = nn.Linear(2000, 1000, bias=False)
        nn.init.zeros_(net.weight)
        with (
            RunningServer(RECIPE, ALONE) as server,
            tw.Client([server.address], RECIPE, rank=0, workers=1, report_seconds=1e-9) as client,
        ):
            client.attach(net, plain_sgd(net))
            for step in range(4):
                generator = torch.Generator().manual_seed(step)
                net.weight.grad = torch.randn(net.weight.shape, generator=generator)
                client.step()
                if look:
                    client.state_dict()
                    client.stats()
            return client.state_dict()["push"]

    looked, left_alone = residuals(True), residuals(False)
    assert torch.equal(looked["weight"]["residual"], left_alone["weight"]["residual"])


def test_a_run_that_ended_goes_on_when_all_workers_are_back(tmp_path: Path) -> None:
    """Not when the first one is: it would train alone."""
    rules = Rules.synchronous(2)
    states: dict[int, Any] = {}
    nets = [network(), network()]  # not in threads: they share a random generator

    def train(rank: int, until: int) -> None:
        net = nets[rank]
        with attached_again(server, rank, net, states.get(rank)) as client:
            while client.version < until:
                net.zero_grad()
                backward(net, client.steps, rank)
                client.step()
            states[rank] = client.state_dict()

    with RunningServer(RECIPE, rules, log_dir=tmp_path) as server:
        both(train, 4)
        server.stop()
        server.start()
        first = threading.Thread(target=train, args=(0, 8))
        first.start()
        first.join(timeout=0.5)
        assert server.service.training.version == 4
        train(1, 8)
        first.join(timeout=20)
    assert [weights(net) for net in nets] == [virtual(RECIPE, 2, 8)] * 2


@contextmanager
def attached_again(
    server: RunningServer, rank: int, net: nn.Module, state: Any
) -> Iterator[tw.Client]:
    with tw.Client([server.address], RECIPE, rank=rank, workers=2, deadline_seconds=20.0) as client:
        if state is not None:
            client.load_state_dict(state)
        client.attach(net, plain_sgd(net))
        yield client


def both(task: Any, *arguments: Any) -> None:
    threads = [threading.Thread(target=task, args=(rank, *arguments)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)


def test_other_parameters_than_at_attach_are_refused() -> None:
    with RunningServer(RECIPE, ALONE) as server, attached(server) as (net, client):
        next(net.parameters()).requires_grad_(False)
        backward(net, 0)
        with pytest.raises(tw.ConfigError, match="other parameters are trained than at attach"):
            client.step()


def test_parameters_that_only_the_optimizer_has_are_refused() -> None:
    net, head = network(), nn.Linear(3, 3)
    client = tw.Client(["tcp://127.0.0.1:1"], RECIPE, rank=0, workers=1)
    with pytest.raises(tw.ConfigError, match="that the network has not"):
        client.attach(net, torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1))


def test_a_gradient_that_is_changed_after_backward_is_refused() -> None:
    with RunningServer(RECIPE, ALONE) as server, attached(server) as (net, client):
        backward(net, 0)
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        with pytest.raises(tw.ConfigError, match="overlap=False"):
            client.step()


def test_without_overlap_gradients_may_be_changed() -> None:
    with (
        RunningServer(tw.dense(), ALONE) as server,
        attached(server, tw.dense(), overlap=False) as (net, client),
    ):
        backward(net, 0)
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        clipped = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        client.step()
        applied = [p.grad for p in net.parameters() if p.grad is not None]
        assert all(torch.equal(a, b) for a, b in zip(clipped, applied, strict=True))


@pytest.mark.parametrize("overlap", [True, False])
def test_a_step_that_timed_out_can_be_tried_again(overlap: bool) -> None:
    with (
        RunningServer(RECIPE, Rules.synchronous(2)) as server,
        attached(server, workers=2, deadline_seconds=1.0, overlap=overlap) as (net, client),
    ):
        backward(net, 0, 0)
        with pytest.raises(tw.TransportTimeout):
            client.step()
        with attached(server, rank=1, workers=2) as (other, late):
            backward(other, 0, 1)
            late.step()
        client.step()
        assert client.version == 1
        assert client.stats().refused_pieces == 0
    assert weights(net) == virtual(RECIPE, 2, 1)


def test_pushes_start_during_backward() -> None:
    net = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600))
    with (
        RunningServer(RECIPE, ALONE) as server,
        tw.Client([server.address], RECIPE, rank=0, workers=1) as client,
    ):
        client.attach(net, plain_sgd(net))
        joined = client.stats().sent_nbytes
        net(torch.ones(1, 600)).sum().backward()
        wait_until(lambda: client.stats().sent_nbytes > joined + 40_000, "a push")
        assert client.version == 0
        client.step()


def test_a_push_larger_than_a_frame_is_sent_in_several() -> None:
    net = nn.Linear(4400, 4000, bias=False)
    with (
        RunningServer(tw.dense(), ALONE) as server,
        tw.Client([server.address], tw.dense(), rank=0, workers=1) as client,
    ):
        client.attach(net, plain_sgd(net))
        before = net.weight.detach().clone()
        net.weight.grad = torch.ones_like(net.weight)
        client.step()
    torch.testing.assert_close(net.weight, before - 0.05)


@pytest.mark.parametrize("recipe", [tw.dense(), tw.clan(tw.Dither(4))], ids=["dense", "dither"])
def test_refused_pushes_are_kept_without_a_residual_too(recipe: tw.Recipe) -> None:
    with (
        RunningServer(recipe, Rules(2, 1, 0)) as server,
        attached(server, recipe, workers=2) as (net, client),
    ):
        with attached(server, recipe, rank=1, workers=2) as (other, quick):
            backward(other, 0, 1)
            quick.step()
        backward(net, 0, 0)
        client.step()  # on version 0, which is one behind: refused
        net.zero_grad()
        backward(net, 1, 0)
        client.step()
        assert client.stats().refused_pieces > 0


def test_a_closed_client_lets_go_of_the_network() -> None:
    net = network()
    with (
        RunningServer(RECIPE, ALONE) as server,
        tw.Client([server.address], RECIPE, rank=0, workers=1) as client,
    ):
        client.attach(net, plain_sgd(net))
        backward(net, 0)
        client.step()
    for step in range(2):
        backward(net, step)
    with pytest.raises(tw.ConfigError, match="closed already"):
        client.step()


def test_more_servers_than_pieces_are_refused() -> None:
    net = nn.Linear(3, 3, bias=False)
    client = tw.Client(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"], RECIPE, rank=0, workers=1)
    with pytest.raises(tw.ConfigError, match="2 servers for a network of 1 pieces"):
        client.attach(net, plain_sgd(net))


def test_nothing_to_train_is_refused() -> None:
    net = nn.Linear(3, 3).requires_grad_(False)
    client = tw.Client(["tcp://127.0.0.1:1"], RECIPE, rank=0, workers=1)
    with pytest.raises(tw.ConfigError, match="no parameter to train"):
        client.attach(net, torch.optim.SGD(net.parameters(), lr=0.1))


def test_attach_that_fails_leaves_nobody_behind() -> None:
    with RunningServer(RECIPE, ALONE) as server:
        with tw.Client([server.address], RECIPE, rank=0, workers=1) as client:
            client.load_state_dict({"push": {"nonsense": {"residual": torch.zeros(3)}}})
            with pytest.raises(tw.ConfigError, match="nonsense"):
                client.attach(net := network(), plain_sgd(net))
        with attached(server) as (net, client):
            backward(net, 0)
            client.step()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "a state of type NoneType"),
        ("state", "a state of type str"),
        ({"push": 3}, "'push' is of type int"),
    ],
    ids=["none", "text", "push is a number"],
)
def test_a_state_that_is_none_is_refused_when_it_is_loaded(state: Any, words: str) -> None:
    client = tw.Client(["tcp://127.0.0.1:1"], RECIPE, rank=0, workers=1)
    with pytest.raises(tw.ConfigError, match=f"load_state_dict: {words}, expected"):
        client.load_state_dict(state)


def test_a_server_that_lost_its_log_is_noticed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        folders = [tmp_path / "0", tmp_path / "1"]
        servers = [
            stack.enter_context(RunningServer(RECIPE, ALONE, log_dir=folder)) for folder in folders
        ]
        addresses = [server.address for server in servers]
        with pytest.raises(KeyError):
            train_and_fail(addresses)
        servers[1].stop()
        servers[1]._log_dir = tmp_path / "new"
        servers[1].start()
        again = tw.Client(addresses, RECIPE, rank=0, workers=1, deadline_seconds=5.0)
        with pytest.raises(tw.ConfigError, match="has one of them lost its log"):
            again.attach(net := network(), plain_sgd(net))


def test_a_goodbye_is_said_again_to_a_server_that_was_away(tmp_path: Path) -> None:
    with RunningServer(RECIPE, Rules.synchronous(2), log_dir=tmp_path) as server:
        net = network()
        client = tw.Client([server.address], RECIPE, rank=0, workers=2, deadline_seconds=20.0)
        client.attach(net, plain_sgd(net))
        server.stop()
        closing = threading.Thread(target=client.close)
        closing.start()
        server.start()
        closing.join(timeout=20)
        assert server.service.training.aggregate is not None
        assert server.service.training.aggregate.absent == {0}
