"""The process group that ranks are found in: there must be one, and this rank in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from tests.distributed.launch import run
from tests.distributed.training import network, refused
from thinwire_lab.train.engines.ddp import join_gloo

NO_GROUP = (
    "torch.distributed has no process group: call init_process_group first, or start with torchrun"
)


def test_compress_module_without_a_process_group_says_what_to_call() -> None:
    assert refused(lambda: tw.compress_module(network(), tw.dense())) == (
        f"compress_module: {NO_GROUP}"
    )


def compress_after_the_end(store: Path) -> str:
    model = DistributedDataParallel(network())
    dist.destroy_process_group()
    text = refused(lambda: tw.compress_ddp(model, tw.dense()))
    join_gloo(store, rank=0, ranks=1, deadline_seconds=60.0)  # the launcher ends one
    return text


def test_compress_ddp_without_a_process_group_says_what_to_call(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert run(compress_after_the_end, store, ranks=1, keep=False) == [f"compress_ddp: {NO_GROUP}"]


def join_a_group_of_others() -> list[str]:
    model = DistributedDataParallel(network())
    group = dist.new_group([0, 1])
    calls: list[Callable[[], object]] = [
        lambda: tw.compress_module(network(), tw.dense(), group=group),
        lambda: tw.compress_ddp(model, tw.dense(), group=group),
    ]
    return [refused(call) for call in calls]


def test_a_rank_that_is_not_in_the_group_is_named() -> None:
    first, second, other = run(join_a_group_of_others, ranks=3, keep=False)
    assert first == second == ["no error"] * 2
    assert other == [
        f"{caller}: rank 2 is not in the group that it was given: only ranks of a group may call it"
        for caller in ("compress_module", "compress_ddp")
    ]
