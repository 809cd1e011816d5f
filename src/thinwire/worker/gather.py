"""Bytes of every rank to rank 0, for checkpoints that are one file."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.errors import WorkerLost


class Gather:
    """Messages to rank 0 over a gloo group that nobody else uses. All ranks must make it alike."""

    def __init__(self, *, deadline_seconds: float) -> None:
        self._deadline = timedelta(seconds=deadline_seconds)
        self._group = dist.new_group(timeout=self._deadline, backend="gloo")

    def to_rank_zero(self, own: Tensor) -> list[Tensor]:
        """On rank 0 the uint8 tensors of all ranks, by rank; elsewhere nothing.

        All ranks must call it. They are received one after the other, so that rank 0 needs room
        for the results alone.
        """
        if dist.get_rank() == 0:
            return [own, *(self._receive(rank) for rank in range(1, dist.get_world_size()))]
        self._wait(dist.isend(torch.tensor([own.numel()]), 0, group=self._group), 0)
        self._wait(dist.isend(own, 0, group=self._group), 0)
        return []

    def _receive(self, rank: int) -> Tensor:
        numel = torch.zeros(1, dtype=torch.int64)
        self._wait(dist.irecv(numel, rank, group=self._group), rank)
        data = torch.empty(int(numel), dtype=torch.uint8)
        self._wait(dist.irecv(data, rank, group=self._group), rank)
        return data

    def _wait(self, work: dist.Work | None, rank: int) -> None:
        try:
            if work is not None:
                work.wait(self._deadline)
        except RuntimeError as error:
            seconds = self._deadline.total_seconds()
            raise WorkerLost(
                f"rank {rank} did not take part in a checkpoint within {seconds:g} s, or is gone: "
                f"all ranks must save it ({error})"
            ) from error
