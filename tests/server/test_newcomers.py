"""Mistakes that everybody makes once get one clear sentence, at once."""

from __future__ import annotations

import socket

import pytest
import torch
from torch import nn

import thinwire as tw
from tests.server.processes import free_address
from tests.server.servers import RunningServer, network, plain_sgd
from thinwire.server.settings import Rules

RECIPE = tw.doublesqueeze(tw.OneBit())


def attach(
    address: str, *, recipe: tw.Recipe = RECIPE, rank: int = 0, workers: int = 2
) -> tw.Client:
    net = network()
    client = tw.Client([address], recipe, rank=rank, workers=workers, deadline_seconds=1.5)
    client.attach(net, plain_sgd(net))
    return client


def test_nobody_listens_at_the_address() -> None:
    address = free_address()
    with pytest.raises(tw.TransportTimeout) as error:
        attach(address)
    assert str(error.value) == (
        f"no server answered at {address} within 1.5 s: is it running, and is the address right?"
    )


def test_something_else_listens_at_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(tw.TransportTimeout, match="is it a Thinwire server"):
            attach(address)


def test_an_address_that_is_none() -> None:
    with pytest.raises(tw.ConfigError, match="expected tcp://HOST:PORT"):
        attach("localhost:5555")


def test_another_number_of_workers() -> None:
    with (
        RunningServer(RECIPE, Rules.synchronous(4)) as server,
        pytest.raises(tw.Refused) as error,
    ):
        attach(server.address)
    assert str(error.value) == (
        f"{server.address}: this server was started for 4 workers, you say 2"
    )


def test_two_workers_with_the_same_rank() -> None:
    with (
        RunningServer(RECIPE, Rules.synchronous(2)) as server,
        attach(server.address),
        pytest.raises(tw.Refused) as error,
    ):
        attach(server.address)
    assert str(error.value) == (
        f"{server.address}: worker 0 has joined already: does another process have the same rank?"
    )


def test_another_recipe() -> None:
    with (
        RunningServer(tw.dgc(0.001), Rules.synchronous(2)) as server,
        pytest.raises(tw.Refused) as error,
    ):
        attach(server.address, recipe=tw.dgc(0.01))
    assert str(error.value) == (
        f"{server.address}: the recipe here is dgc(0.001), yours is dgc(0.01)"
    )


def test_another_network() -> None:
    net = network()[:1]  # type: ignore[index]
    with RunningServer(RECIPE, Rules.synchronous(2)) as server, attach(server.address, rank=1):
        client = tw.Client([server.address], RECIPE, rank=0, workers=2, deadline_seconds=1.5)
        with pytest.raises(tw.Refused, match="the model here has 6 tensors, yours 2"):
            client.attach(net, plain_sgd(net))


def test_a_rank_that_there_is_not() -> None:
    with pytest.raises(tw.ConfigError, match="rank 2, but with workers=2 ranks are 0 to 1"):
        tw.Client(["tcp://127.0.0.1:5555"], RECIPE, rank=2, workers=2)


def test_step_before_attach() -> None:
    client = tw.Client(["tcp://127.0.0.1:5555"], RECIPE, rank=0, workers=1)
    with pytest.raises(tw.ConfigError, match=r"call attach\(net, optimizer\) first"):
        client.step()


def test_two_backward_passes_without_no_sync() -> None:
    with RunningServer(RECIPE, Rules.synchronous(1)) as server:
        net = network()
        with tw.Client([server.address], RECIPE, rank=0, workers=1) as client:
            client.attach(net, plain_sgd(net))
            backward(net)
            with pytest.raises(tw.ConfigError, match=r"client\.no_sync"):
                backward(net)


def test_a_backward_pass_that_failed() -> None:
    """What it gave may be sent: with a step for that, training goes on."""
    with RunningServer(RECIPE, Rules.synchronous(1)) as server:
        net = network()
        with tw.Client([server.address], RECIPE, rank=0, workers=1) as client:
            client.attach(net, plain_sgd(net))
            fail_half_way(net)
            client.step()
            net.zero_grad()
            backward(net)
            client.step()
            assert client.version == client.steps == 2
            fail_half_way(net)
            with pytest.raises(tw.ConfigError, match="after one that fails call"):
                backward(net)


def fail_half_way(net: nn.Module) -> None:
    """The last layers have gradients, the first have none."""

    def fail(grad: torch.Tensor) -> None:
        raise RuntimeError("half way")

    first, *rest = net.children()
    middle = first(torch.ones(1, 20))
    middle.register_hook(fail)
    with pytest.raises(RuntimeError, match="half way"):
        nn.Sequential(*rest)(middle).sum().backward()


def backward(net: nn.Module) -> None:
    net(torch.ones(1, 20)).sum().backward()
