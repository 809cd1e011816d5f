"""Networks of fully_shard: what replicas exchange is what whole networks would, part by part."""

# ruff: noqa: N802 - a test begins with the number of its invariant, as the invariant is written

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.optim.optimizer import Optimizer
from torch.utils.checkpoint import checkpoint

import thinwire as tw
from tests.distributed.handles import owed as _owed
from tests.distributed.launch import run
from tests.distributed.test_checkpoints import through_a_file
from tests.distributed.training import (
    backward,
    batch,
    exchange_state,
    floats,
    momentum_sgd,
    refused,
    without_onednn,
)
from thinwire.hooks.module_gradients import ModuleCompression

NAMES = ("replicate", "shard")


def adamw(net: nn.Module) -> Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-3)


def own_adamw(net: nn.Module) -> Optimizer:
    return tw.optim.AdamW(net.parameters(), lr=1e-3)


def sgd(net: nn.Module) -> Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05)


RECIPES: dict[str, tuple[tw.Recipe | None, Callable[[nn.Module], Optimizer]]] = {
    "dense": (tw.dense(), adamw),
    "1 bit": (tw.doublesqueeze(tw.OneBit(block=64)), sgd),
    "top-k": (None, sgd),
    "momentum": (None, momentum_sgd),
    "adam": (tw.adam(first=2, most_gap=2), adamw),
    "adam, own": (tw.adam(first=2, most_gap=2), own_adamw),
    "dgc": (tw.dgc(0.02, warmup_steps=0), momentum_sgd),
    "clipped": (tw.dgc(0.02, warmup_steps=0, clip_norm=0.1), momentum_sgd),
}


class Net(nn.Module):
    """Rows that do not divide evenly, and a tensor with fewer rows than a replica has ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(20, 301)
        self.blocks = nn.Sequential(nn.Linear(301, 301), nn.Tanh(), nn.Linear(301, 20))
        self.branch = nn.Linear(20, 20)
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(20, 5)

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        hidden = self.blocks(torch.tanh(self.first(x)))
        if branch:
            hidden = hidden + self.branch(x)
        return self.head(hidden * self.scale)  # type: ignore[no-any-return]


def meshes(replicas: int = 2) -> DeviceMesh:
    ranks = dist.get_world_size()
    return init_device_mesh("cpu", (replicas, ranks // replicas), mesh_dim_names=NAMES)


class Sharded:
    """One rank's part of a network; ``native`` is torch's own averaging between replicas."""

    def __init__(
        self,
        name: str,
        *,
        native: bool = False,
        replicas: int = 2,
        policy: MixedPrecisionPolicy | None = None,
        net: Any = None,
        offload: CPUOffloadPolicy | None = None,
        **options: Any,
    ) -> None:
        recipe, make_optimizer = RECIPES[name]
        self.mesh = meshes(replicas)
        on = self.mesh if native else self.mesh["shard"]
        self.net: Any = Net() if net is None else net
        wrap: dict[str, Any] = {} if policy is None else {"mp_policy": policy}
        inner: dict[str, Any] = (
            {} if policy is None else {"mp_policy": replace(policy, output_dtype=None)}
        )
        if offload is not None:
            wrap = inner = {"offload_policy": offload}
        fully_shard(self.net.blocks, mesh=on, **inner)
        fully_shard(self.net, mesh=on, **wrap)
        self.optimizer = make_optimizer(self.net)
        self.compression: ModuleCompression | None = None
        if not native:
            self.compression = tw.compress_fsdp(
                self.net,
                recipe,
                replicate=self.mesh["replicate"],
                optimizer=self.optimizer,
                **options,
            )

    @property
    def handle(self) -> ModuleCompression:
        assert self.compression is not None
        return self.compression

    def loss(self, step: int) -> Tensor:
        x = batch(step, dist.get_rank())
        return nn.functional.cross_entropy(self.net(x).float(), (x[:, 0] > 0).long())

    def step(self, loss: Tensor) -> None:
        backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, steps: range) -> list[bytes]:
        for step in steps:
            self.step(self.loss(step))
        return self.weights()

    def weights(self) -> list[bytes]:
        """Of the whole network."""
        parameters: list[Any] = list(self.net.parameters())
        wholes = [p.full_tensor().detach() for p in parameters]
        return [whole.float().numpy().tobytes() for whole in wholes]


def train(name: str, steps: int, options: dict[str, Any]) -> list[bytes]:
    return Sharded(name, **options).train(range(steps))


def test_identity_is_torchs_own_averaging_bit_for_bit() -> None:
    """50 steps."""
    ours = run(train, "dense", 50, {}, ranks=4)
    assert ours == run(train, "dense", 50, {"native": True}, ranks=4)


@pytest.mark.parametrize("exchange", ["sharded", "allgather"])
@pytest.mark.parametrize("name", RECIPES)
def test_S1_replicas_are_equal_bit_for_bit(name: str, exchange: str) -> None:
    found = run(train, name, 8, {"exchange": exchange}, ranks=4)
    assert all(one == found[0] for one in found)
    assert all(bool(floats(data).isfinite().all()) for data in found[0])


class Even(nn.Module):
    """Every part begins at a multiple of 64 elements, as runs and blocks of codecs do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.Sequential(nn.Linear(20, 128), nn.Tanh(), nn.Linear(128, 128))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)  # type: ignore[no-any-return]


def train_even(name: str) -> list[bytes]:
    return Sharded(name, net=Even()).train(range(8))


@pytest.mark.parametrize("name", ["dense", "1 bit"])
def test_S1_parts_are_what_whole_replicas_compute(name: str) -> None:
    recipe, make_optimizer = RECIPES[name]
    net = Even()
    cluster = tw.VirtualCluster(net, make_optimizer(net), recipe, workers=2, force=True)

    def loss_of(step: int, worker: int) -> Tensor:
        batches = [batch(step, 2 * worker + part) for part in range(2)]
        losses = [nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long()) for x in batches]
        return (losses[0] + losses[1]) / 2

    for step in range(8):
        cluster.step(lambda worker, step=step: loss_of(step, worker))  # type: ignore[misc]
    found = run(train_even, name, ranks=4)
    assert found[0] == [p.detach().numpy().tobytes() for p in net.parameters()]


def bytes_and_residuals(shards: int) -> tuple[int, int]:
    trainer = Sharded("momentum", replicas=2, net=Even())
    trainer.train(range(3))
    push = exchange_state(trainer.handle)["push"]
    owed = sum(x.numel() for state in push.values() for x in state.values() if x.dim())
    return trainer.handle.stats().pushed_nbytes, owed


def test_bytes_and_residuals_are_divided_by_the_number_of_parts() -> None:
    whole, halves = (run(bytes_and_residuals, n, ranks=2 * n) for n in (1, 2))
    for nbytes, numel in halves:
        assert numel == whole[0][1] / 2
        assert whole[0][0] / 2 <= nbytes <= 1.05 * whole[0][0] / 2


POLICIES = {
    "bfloat16 within": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
    "reduced in bfloat16": MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16),
    "float32 outputs": MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32),
}


def train_mixed(policy: str, native: bool) -> list[bytes]:
    with without_onednn():
        trainer = Sharded("dense", native=native, policy=POLICIES[policy])
        return trainer.train(range(6))


@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision_is_torchs_own(policy: str) -> None:
    ours, theirs = (run(train_mixed, policy, native, ranks=4)[0] for native in (False, True))
    exact = policy != "reduced in bfloat16"  # theirs rounds the mean of replicas there
    for mine, other in zip(map(floats, ours), map(floats, theirs), strict=True):
        torch.testing.assert_close(
            mine, other, rtol=0 if exact else 1e-2, atol=0 if exact else 1e-3
        )


def train_in_bfloat16() -> list[bytes]:
    with without_onednn():
        trainer = Sharded("momentum", net=Net().bfloat16())
        x = batch(0, dist.get_rank()).bfloat16()
        for _ in range(4):
            trainer.step(trainer.net(x).float().square().mean())
        return trainer.weights()


def test_weights_of_16_bits_are_copied_there_and_back() -> None:
    found = run(train_in_bfloat16, ranks=4)
    assert all(one == found[0] for one in found)
    fresh = [p.detach().bfloat16().float().numpy().tobytes() for p in Net().parameters()]
    assert all(a != b for a, b in zip(found[0], fresh, strict=True))


def accumulate(how: str, native: bool) -> list[bytes]:
    """Steps of three batches."""
    trainer = Sharded("dense", native=native)
    for step in range(3):
        for part in range(3):
            last = part == 2
            loss = trainer.loss(3 * step + part)
            if how == "torch":
                trainer.net.set_requires_gradient_sync(last)
                backward(loss)
            elif last or native:
                backward(loss)
            else:
                with trainer.handle.no_sync():
                    backward(loss)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
    return trainer.weights()


@pytest.mark.parametrize("how", ["torch", "no_sync"])
def test_accumulated_gradients_are_exchanged_once(how: str) -> None:
    ours, theirs = (run(accumulate, how, native, ranks=4)[0] for native in (False, True))
    if how == "torch":
        assert ours == theirs
    for mine, other in zip(map(floats, ours), map(floats, theirs), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def train_clipped(native: bool) -> list[bytes]:
    trainer = Sharded("dense", native=native)
    for step in range(4):
        backward(trainer.loss(step))
        nn.utils.clip_grad_norm_(trainer.net.parameters(), 0.1)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
    return trainer.weights()


def test_clipping_after_the_exchange_is_torchs_own() -> None:
    ours, theirs = (run(train_clipped, native, ranks=4)[0] for native in (False, True))
    assert ours == theirs


def train_branches(name: str) -> list[bytes]:
    """Replicas that use different parts of a network, and none of it now and then."""
    trainer = Sharded(name)
    replica = trainer.mesh["replicate"].get_local_rank()
    for step in range(6):
        x = batch(step, dist.get_rank())
        trainer.step(trainer.net(x, branch=step % 3 == replica).square().mean())
    return trainer.weights()


@pytest.mark.parametrize("name", ["dense", "1 bit", "adam"])
def test_replicas_may_use_different_parts_of_a_network(name: str) -> None:
    found = run(train_branches, name, ranks=4)
    assert all(one == found[0] for one in found)


def train_frozen() -> list[bytes]:
    net = Net()
    net.first.requires_grad_(False)
    return Sharded("1 bit", net=net).train(range(4))


def test_frozen_parameters_stay_what_they_are() -> None:
    found = run(train_frozen, ranks=4)
    assert all(one == found[0] for one in found)
    assert found[0][1:3] == [p.detach().numpy().tobytes() for p in Net().first.parameters()]


def train_checkpointed(native: bool) -> list[bytes]:
    trainer = Sharded("dense", native=native)
    for step in range(4):
        x = batch(step, dist.get_rank())
        out = checkpoint(trainer.net, x, use_reentrant=False)
        trainer.step(nn.functional.cross_entropy(out, (x[:, 0] > 0).long()))
    return trainer.weights()


def test_activation_checkpointing_changes_nothing() -> None:
    ours, theirs = (run(train_checkpointed, native, ranks=4)[0] for native in (False, True))
    assert ours == theirs


def begin_apart() -> list[bytes]:
    net = Net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(float(dist.get_rank()))
    return Sharded("dense", net=net).weights()


def test_replicas_begin_with_the_weights_of_the_first() -> None:
    """fully_shard itself takes every part from the rank that holds it."""
    found = run(begin_apart, ranks=4)
    assert all(one == found[0] for one in found)


def resume(name: str, at: int) -> bool:
    whole, first, second = (Sharded(name) for _ in range(3))
    first.train(range(at))
    second.net.load_state_dict(first.net.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.handle.load_state_dict(through_a_file(first.handle.state_dict()))
    return whole.train(range(8)) == second.train(range(at, 8))


@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("name", ["1 bit", "adam", "dgc"])
def test_S2_resuming_is_bit_identical(name: str, at: int) -> None:
    assert run(resume, name, at, ranks=4) == [True] * 4


def owed_of(trainer: Sharded) -> dict[str, Tensor]:
    """What all ranks together owe, of whole parameters, in units of the mean."""
    state = trainer.handle.state_dict()
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, state)
    ranks = [own for one in every for own in one.values()]
    count = ranks[0]["shard"]["count"]
    owed: dict[str, list[Tensor]] = {}
    for index in range(count):
        replicas = [own["exchange"] for own in ranks if own["shard"]["index"] == index]
        for name in replicas[0]["push"]:
            owed.setdefault(name, []).append(_owed(replicas, name, "residual"))
    return {name: torch.cat(parts) for name, parts in owed.items()}


def save_sharded(folder: str, replicas: int) -> dict[str, Tensor]:
    trainer = Sharded("1 bit", replicas=replicas)
    trainer.train(range(4))
    save({"compression": trainer.handle}, checkpoint_id=folder)
    return owed_of(trainer)


def load_sharded(folder: str, replicas: int) -> tuple[int, dict[str, Tensor]]:
    trainer = Sharded("1 bit", replicas=replicas)
    trainer.handle.load_distributed(folder)
    trainer.train(range(0))
    return trainer.handle.steps, owed_of(trainer)


@pytest.mark.parametrize("after", [(4, 2), (4, 4), (3, 1), (2, 2), (2, 1), (4, 1)])
@pytest.mark.parametrize("before", [(4, 2), (3, 3)])
def test_S8_other_numbers_of_replicas_and_parts_owe_the_same_mean(
    before: tuple[int, int], after: tuple[int, int], tmp_path: Path
) -> None:
    """Numbers of ranks, and of replicas."""
    was = run(save_sharded, str(tmp_path), before[1], ranks=before[0])[0]
    steps, now = run(load_sharded, str(tmp_path), after[1], ranks=after[0])[0]
    assert steps == 4
    assert was.keys() == now.keys()
    for name, owed in was.items():
        torch.testing.assert_close(now[name], owed, rtol=1e-6, atol=1e-8)


def refusals() -> list[str]:
    mesh = meshes()
    whole, native, tensors = Even(), Even(), Even()
    fully_shard(native, mesh=mesh)
    parallelize_module(tensors, mesh["shard"], {"blocks.0": ColwiseParallel()})
    first = FullyShardedDataParallel(Even(), device_id=torch.device("cpu"))
    fine = Even()
    fully_shard(fine, mesh=mesh["shard"])
    half = Even().half()
    fully_shard(half, mesh=mesh["shard"])
    calls = [
        (whole, mesh["replicate"]),
        (native, mesh["replicate"]),
        (tensors, mesh["replicate"]),
        (first, mesh["replicate"]),
        (fine, mesh),
        (fine, mesh["shard"]),
        (half, mesh["replicate"]),
    ]
    return [
        refused(lambda net=net, on=on: tw.compress_fsdp(net, tw.dense(), replicate=on))  # type: ignore[misc]
        for net, on in calls
    ]


def test_other_kinds_of_sharding_are_refused_with_the_change_that_helps() -> None:
    for texts in run(refusals, ranks=4, keep=False):
        for text, expected in zip(
            texts,
            [
                "is not sharded",
                "a mesh of 2 dimensions",
                "is not sharded",
                "FullyShardedDataParallel",
                "not one dimension",
                "hold other parts",
                "float16",
            ],
            strict=True,
        ):
            assert expected in text
            assert 'mesh=mesh["shard"]' in text or expected == "float16"


def warned_of_norms() -> str:
    net = Even()
    mesh = meshes()
    fully_shard(net, mesh=mesh["shard"])
    optimizer = tw.optim.LANS(net.parameters(), lr=0.01)
    return refused(lambda: tw.compress_fsdp(net, replicate=mesh["replicate"], optimizer=optimizer))


def test_lans_is_refused() -> None:
    assert all("LANS" in text for text in run(warned_of_norms, ranks=4))


def train_compiled(native: bool) -> list[bytes]:
    trainer = Sharded("dense", native=native)
    trainer.net.compile(backend="aot_eager")
    return trainer.train(range(3))


def test_compiled_networks_are_torchs_own() -> None:
    ours, theirs = (run(train_compiled, native, ranks=4)[0] for native in (False, True))
    assert ours == theirs


def train_offloaded(native: bool) -> list[bytes]:
    policy = CPUOffloadPolicy(pin_memory=False)
    return Sharded("dense", native=native, offload=policy).train(range(3))


def test_offloaded_networks_are_torchs_own() -> None:
    ours, theirs = (run(train_offloaded, native, ranks=4)[0] for native in (False, True))
    assert ours == theirs


def go_on_after_an_error() -> tuple[bool, list[bytes]]:
    """An error of the script in forward, on all ranks, as when memory is short."""
    trainer = Sharded("1 bit")
    trainer.train(range(2))
    handle = trainer.net.head.register_forward_pre_hook(_fail)
    failed = False
    try:
        trainer.loss(2)
    except ArithmeticError:
        failed = True
    handle.remove()
    trainer.net.reset_iter_state()
    return failed, trainer.train(range(2, 4))


def _fail(module: nn.Module, inputs: object) -> None:
    raise ArithmeticError("the script's own")


def test_training_goes_on_after_an_error_in_forward() -> None:
    undisturbed = run(train, "1 bit", 4, {}, ranks=4)[0]
    assert run(go_on_after_an_error, ranks=4) == [(True, undisturbed)] * 4
