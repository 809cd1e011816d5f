"""``AllReduce``: gloo's allreduce in buckets, as DDP uses it: the alternative to servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from thinwire_lab.bench.server.synthetic import SyntheticNetwork

Group = dist.ProcessGroup | None

BUCKET_NUMEL = (25 << 20) // 4
"""The size of DDP's buckets."""


def make_groups(
    rank: int, ranks: int, store: str, sizes: Sequence[int], *, deadline_seconds: float
) -> dict[int, Group]:
    """A group of the first ranks for each of ``sizes``. ``store`` is a file that all share."""
    timeout = timedelta(seconds=deadline_seconds)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timeout
    )
    return {size: dist.new_group(list(range(size)), timeout=timeout) for size in sizes}


class AllReduce:
    """Averages gradients bucket by bucket, each as soon as backward has filled it."""

    def __init__(
        self, net: SyntheticNetwork, optimizer: Optimizer, group: Group, workers: int
    ) -> None:
        self._optimizer, self._group, self._workers = optimizer, group, workers
        self._buckets: list[Tensor] = []
        self._filled: list[int] = []
        self._works: list[dist.Work] = []
        self._steps = 0
        for parameters in _buckets(reversed(list(net.parameters()))):
            self._add_bucket(net, parameters)

    def step(self) -> None:
        """Wait for the sums, and apply their means."""
        for work in self._works:
            work.wait()
        for bucket in self._buckets:
            bucket.div_(self._workers)
        self._optimizer.step()
        self._works.clear()
        self._filled = [0] * len(self._filled)
        self._steps += 1

    def traffic(self) -> tuple[int, int]:
        """What a ring sends and receives: gloo does not count."""
        nbytes = sum(4 * bucket.numel() for bucket in self._buckets)
        one_way = self._steps * 2 * nbytes * (self._workers - 1) // self._workers
        return one_way, one_way

    def _add_bucket(self, net: SyntheticNetwork, parameters: Sequence[nn.Parameter]) -> None:
        """Gradients are views of their bucket, so that nothing is copied."""
        numels = [parameter.numel() for parameter in parameters]
        bucket = torch.zeros(sum(numels))
        number, count = len(self._buckets), len(parameters)
        for parameter, room in zip(parameters, torch.split(bucket, numels), strict=True):
            net.rooms[parameter] = room.view(parameter.shape)
            hook = partial(self._fill, number, count)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._buckets.append(bucket)
        self._filled.append(0)

    def _fill(self, number: int, count: int, _: Tensor) -> None:
        self._filled[number] += 1
        if self._filled[number] == count:
            work = dist.all_reduce(self._buckets[number], group=self._group, async_op=True)
            self._works += [] if work is None else [work]


def _buckets(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = [[]]
    numel = 0
    for parameter in parameters:
        if buckets[-1] and numel + parameter.numel() > BUCKET_NUMEL:
            buckets.append([])
            numel = 0
        buckets[-1].append(parameter)
        numel += parameter.numel()
    return buckets
