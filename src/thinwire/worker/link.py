"""Bytes between the ranks of a process group. Every wait has a deadline and says who is missing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.errors import RemoteProtocolError, WorkerLost
from thinwire.wire.frame import DEFAULT_LIMITS, HEADER_NBYTES

MAX_NBYTES = HEADER_NBYTES + DEFAULT_LIMITS.max_body_nbytes
"""The largest message: one frame."""


class Link:
    """Point-to-point messages over a gloo group that nobody else uses.

    Not collectives: when one of those fails, it does not say because of whom. One thread at a time.
    """

    def __init__(self, ranks: Sequence[int], *, deadline_seconds: float) -> None:
        """``ranks`` are global ones; all of them must make their link at the same time."""
        self._deadline = timedelta(seconds=deadline_seconds)
        self._ranks = list(ranks)
        self._group = dist.new_group(self._ranks, timeout=self._deadline, backend="gloo")
        self.rank = self._ranks.index(dist.get_rank())
        self.size = len(self._ranks)

    def swap(self, outgoing: Sequence[bytes], *, what: str) -> list[bytes]:
        """Send ``outgoing[r]`` to rank r and return what each rank sent, in order of rank.

        ``what`` says in errors what was waited for.
        """
        sizes = [torch.tensor([len(data)]) for data in outgoing]
        incoming = [size.clone() for size in sizes]
        self._swap_tensors(sizes, incoming, what)
        self._check_sizes([int(size) for size in incoming])
        sent = [torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8) for data in outgoing]
        got = [torch.empty(max(1, int(size)), dtype=torch.uint8) for size in incoming]
        self._swap_tensors(sent, got, what)
        return [
            outgoing[self.rank] if r == self.rank else got[r].numpy().tobytes()[: int(size)]
            for r, size in enumerate(incoming)
        ]

    def _check_sizes(self, sizes: Sequence[int]) -> None:
        for rank, size in zip(self._ranks, sizes, strict=True):
            if not 0 <= size <= MAX_NBYTES:
                raise RemoteProtocolError(
                    f"rank {rank} announces {size} bytes, expected at most {MAX_NBYTES}"
                )

    def all_agree(self, yes: bool, *, what: str) -> bool:
        """Whether every rank says yes."""
        votes = self.swap([b"\1" if yes else b"\0"] * self.size, what=what)
        return all(vote == b"\1" for vote in votes)

    def close(self) -> None:
        dist.destroy_process_group(self._group)

    def _swap_tensors(self, out: Sequence[Tensor], into: Sequence[Tensor], what: str) -> None:
        peers = [r for r in range(self.size) if r != self.rank]
        received = {r: dist.irecv(into[r], self._ranks[r], group=self._group) for r in peers}
        sent = {r: dist.isend(out[r], self._ranks[r], group=self._group) for r in peers}
        for works, verb in ((received, "sent nothing"), (sent, "took nothing")):
            for r, work in works.items():
                self._wait(work, r, verb, what)

    def _wait(self, work: dist.Work | None, rank: int, verb: str, what: str) -> None:
        try:
            if work is not None:
                work.wait(self._deadline)
        except RuntimeError as error:
            seconds = self._deadline.total_seconds()
            raise WorkerLost(
                f"rank {self._ranks[rank]} {verb} within {seconds:g} s, or is gone: "
                f"waited for {what} ({error})"
            ) from error
