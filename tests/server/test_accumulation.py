"""Several backward passes in one step: ``client.no_sync()`` sends nothing until its end."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import thinwire as tw
from tests.server.servers import RunningServer, loss_of, network, plain_sgd
from thinwire.server.settings import Rules


def backward(net: nn.Module, step: int) -> None:
    loss_of(net, step, 0).backward()  # type: ignore[no-untyped-call]


def gradients(net: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def test_a_no_sync_inside_another_does_not_end_it() -> None:
    net, alone = network(), network()
    for step in range(3):
        backward(alone, step)
    with (
        RunningServer(tw.dense(), Rules.synchronous(1)) as server,
        tw.Client([server.address], tw.dense(), rank=0, workers=1) as client,
    ):
        client.attach(net, plain_sgd(net))
        with client.no_sync():
            with client.no_sync():
                backward(net, 0)
            backward(net, 1)
        backward(net, 2)
        client.step()
        pairs = zip(gradients(net), gradients(alone), strict=True)
        assert all(torch.equal(sent, summed) for sent, summed in pairs)
