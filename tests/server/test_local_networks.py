"""What a network may hold, and rounds must tell apart: buffers, counters, tied and frozen weights,
16 bits; and runs that go on with other workers, or more of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from tests.local_networks import Normed
from tests.server.local_workers import Worker, all_of
from tests.server.servers import RunningServer, network
from thinwire.server.settings import Rules

FLOAT32 = tw.local_average(tw.Float32())


def state(net: nn.Module) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in net.state_dict().items()}


def attached(work: Callable[[Worker], Any], worker: Worker) -> Any:
    with worker.client as client:
        client.attach(worker.net, worker.optimizer)
        return work(worker)


def run(
    work: Callable[[Worker], Any],
    *,
    net: Callable[[], nn.Module],
    workers: int = 2,
    every: int | tw.Rounds = 5,
    recipe: tw.Recipe = FLOAT32,
) -> list[Any]:
    """What ``work`` returns for each worker of a synchronous server."""
    with RunningServer(recipe, Rules.synchronous(workers)) as server:
        made = [
            Worker([server.address], recipe, rank, workers=workers, every=every, net=net())
            for rank in range(workers)
        ]
        return all_of([partial(attached, work, worker) for worker in made])


def test_buffers_are_averaged_and_what_is_not_trained_stays() -> None:
    def work(worker: Worker) -> tuple[dict[str, Tensor], ...]:
        worker.train(range(5))
        merged = state(worker.net)
        worker.train(range(5, 8))
        own = state(worker.net)
        with worker.client.global_weights():
            shared = state(worker.net)
        again = state(worker.net)
        assert all(torch.equal(own[name], x) for name, x in again.items())
        return merged, own, shared

    (merged, own, shared), (merged_there, own_there, shared_there) = run(work, net=Normed)
    first = Normed().state_dict()
    assert not torch.equal(own["norm.running_mean"], own_there["norm.running_mean"])
    for name, x in shared.items():
        assert torch.equal(x, shared_there[name]), name
        if x.is_floating_point():
            assert torch.equal(x, merged[name]), name
            assert torch.equal(x, merged_there[name]), name
    for name in ("frozen.weight", "frozen.bias", "unused.weight"):
        assert torch.equal(own[name], first[name])
    assert torch.equal(own["first.weight"], own["tied.weight"])
    # A counter is a worker's own: it has seen so many batches itself.
    assert int(own["norm.num_batches_tracked"]) == int(shared["norm.num_batches_tracked"]) == 8


@pytest.mark.parametrize("rounds", [tw.Rounds(2), tw.Rounds(4, delay=2)], ids=repr)
def test_16_bits_do_not_drift_where_nothing_is_learned(rounds: tw.Rounds) -> None:
    """The global weights stay in float32, and exactly what they were."""

    def work(worker: Worker) -> float:
        weights = worker.client._alone().weights
        before = {name: weights[name].clone() for name in weights.local}
        for group in worker.optimizer.param_groups:
            group["lr"] = 0.0
        worker.train(range(12))
        return max(float((weights[name] - x).abs().max()) for name, x in before.items())

    assert run(work, net=lambda: network().bfloat16(), every=rounds) == [0.0, 0.0]


def ones_in_16_bits() -> nn.Module:
    net = network().bfloat16()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(1.0)
    return net


def test_what_is_too_small_for_16_bits_is_kept_until_it_is_not() -> None:
    """One worker of two moves by the least that there is: the mean is half of that."""

    def work(worker: Worker) -> list[tuple[float, float]]:
        weight, seen = next(worker.net.parameters()), []
        for _ in range(4):
            if worker.rank == 0:
                weight.detach().add_(2.0**-7)
            worker.optimizer.step()  # without gradients, which moves nothing
            global_ = worker.client._alone().weights["0.weight"]
            seen.append((float(global_.min()) - 1.0, float(weight.max().detach()) - 1.0))
        return seen

    found = run(work, net=ones_in_16_bits, every=1)
    least = 2.0**-8
    assert (
        found
        == [[(least, 0.0), (2 * least, 2 * least), (3 * least, 4 * least), (4 * least,) * 2]] * 2
    )


def test_a_run_goes_on_with_another_number_of_workers() -> None:
    """New servers, and the global weights as first ones: all begin where the others were."""

    def first(worker: Worker) -> dict[str, Tensor]:
        worker.train(range(6))
        worker.client.synchronize()
        return state(worker.net)

    def second(worker: Worker) -> tuple[Tensor, dict[str, Tensor]]:
        with worker.client.global_weights():
            begun = state(worker.net)["0.weight"]
        worker.train(range(6, 11))
        return begun, state(worker.net)

    recipe = tw.diloco(lr=0.8, momentum=0.5)
    states = run(first, net=network, workers=3, every=4, recipe=recipe)

    def loaded() -> nn.Module:
        net = network()
        net.load_state_dict(states[0])
        return net

    found = run(second, net=loaded, workers=2, recipe=recipe)
    for begun, weights in found:
        assert torch.equal(begun, states[0]["0.weight"])
        assert all(torch.equal(x, found[0][1][name]) for name, x in weights.items())


def test_the_state_of_another_kind_of_training_is_refused() -> None:
    with RunningServer(FLOAT32, Rules.synchronous(1)) as server:
        worker = Worker([server.address], FLOAT32, 0, workers=1)
        worker.client.load_state_dict({"steps": 3, "version": 3, "push": {}, "returned": {}})
        with pytest.raises(tw.ConfigError, match="of a worker without local steps"):
            worker.client.attach(worker.net, worker.optimizer)
        client = tw.Client([server.address], FLOAT32, rank=0, workers=1)
        client.load_state_dict({"steps": 3, "version": 3, "local": {}})
        with pytest.raises(tw.ConfigError, match="give local_steps="):
            client.attach(worker.net, worker.optimizer)


def test_no_exchange_while_the_global_weights_are_lent() -> None:
    def work(worker: Worker) -> None:
        worker.train(range(3))
        with (
            worker.client.global_weights(),
            pytest.raises(tw.ConfigError, match=r"synchronize\(\) within global_weights"),
        ):
            worker.client.synchronize()

    run(work, net=network, workers=1)
