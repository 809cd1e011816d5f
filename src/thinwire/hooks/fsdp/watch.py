"""``ShardWatch``: a deadline for what ranks of one replica do together, and who is late.

fully_shard gathers weights and scatters gradients by collectives, which wait for the timeout of the
process group, half an hour, and do not say for which rank. Here every rank tells a store now and
then how many it has begun. When one is late, the rank that stopped telling is named, or else the
one that is behind all others.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Store

from thinwire.errors import WorkerLost
from thinwire.exchange.link import new_store
from thinwire.hooks.rendezvous import MOST_GRACE_SECONDS

_BEATS = 40
"""How many times within a deadline a rank says that it is alive, at least."""

_MOST_BEAT_SECONDS = 0.5


class ShardWatch:
    """Of one rank. ``ranks`` are those of all replicas, which make theirs at the same time."""

    def __init__(
        self, ranks: Sequence[int], group: dist.ProcessGroup, *, deadline_seconds: float
    ) -> None:
        """``group`` are those of this replica."""
        self._group, self._ranks = group, list(ranks)
        self._store = new_store(ranks)
        self._beat_seconds = min(deadline_seconds / _BEATS, _MOST_BEAT_SECONDS)
        # Ranks of other replicas wait for this one meanwhile, and must hear of it in time.
        grace = min(deadline_seconds / 5, MOST_GRACE_SECONDS)
        self.patience_seconds = deadline_seconds - 2 * grace
        self.on_error: Callable[[BaseException], None] = lambda error: self.leave(str(error))
        """Called when a rank is late, before that is raised."""
        self._count = [0]
        self._stop = threading.Event()
        beat = (self._store, str(dist.get_rank()), self._count, self._stop, self._beat_seconds)
        alive = threading.Thread(target=_beat, args=beat, name="thinwire alive", daemon=True)
        alive.start()
        # Python must not end while a thread is in the store's C++: that would abort.
        self._end = weakref.finalize(self, _stop, self._stop, alive)
        self._works: queue.SimpleQueue[dist.Work | None] = queue.SimpleQueue()
        self._waited: queue.SimpleQueue[RuntimeError | None] = queue.SimpleQueue()
        weakref.finalize(self, self._works.put, None)
        waits = self._works, self._waited
        threading.Thread(target=_wait_for, args=waits, name="thinwire wait", daemon=True).start()

    def watch(self, net: nn.Module) -> None:
        """Let the collectives of ``net``, and of all modules within, have the deadline. Versions of
        torch that cannot be told to have that of their process group."""
        modules: Iterable[Any] = net.modules()
        for module in modules:
            if hasattr(module, "set_custom_all_gather"):
                module.set_custom_all_gather(_AllGather(self))
            if hasattr(module, "set_custom_reduce_scatter"):
                module.set_custom_reduce_scatter(_ReduceScatter(self))

    def close(self) -> None:
        self._end()

    def leave(self, text: str) -> None:
        """Tell all ranks why this one stops, where they look when it is late."""
        with suppress(RuntimeError):
            self._store.set("left", text)

    def sum(self, x: float) -> float:
        """Of this replica's ranks."""
        total = torch.tensor([x], dtype=torch.float64)
        self.run(
            lambda: dist.all_reduce(total, group=self._group, async_op=True), "adding up norms"
        )
        return float(total)

    def run(self, begin: Callable[[], dist.Work | None], what: str) -> None:
        """A collective of this replica's ranks."""
        self._count[0] += 1
        try:
            work = begin()
            if work is not None:
                self._wait(work)
        except RuntimeError as error:
            reason = str(error).partition(". This is typically caused by")[0]
            lost = WorkerLost(self._left() or f"{self._late()} while {what} ({reason})")
            self.on_error(lost)
            raise lost from error

    def _wait(self, work: dist.Work) -> None:
        """In another thread: of some collectives gloo's own wait knows no timeout. And not in one
        go: another rank may say meanwhile why it stops, and keep its connections."""
        until = time.monotonic() + self.patience_seconds
        self._works.put(work)
        while True:
            left = until - time.monotonic()
            try:
                error = self._waited.get(timeout=max(min(left, 2 * self._beat_seconds), 0.001))
            except queue.Empty:
                if left <= 0 or self._left():
                    raise RuntimeError("timed out") from None
                continue
            if error is not None:
                raise error
            return

    def _left(self) -> str:
        """What another rank has said when it stopped."""
        with suppress(RuntimeError):
            if self._store.check(["left"]):
                return self._store.get("left").decode()
        return ""

    def _late(self) -> str:
        """Who is, in a sentence."""
        try:
            before = self._counts()
            time.sleep(4 * self._beat_seconds)
            after = self._counts()
        except RuntimeError:
            return "the store of the process group is gone, with the rank or agent that has it,"
        own = dist.get_rank()
        silent = [rank for rank in after if rank != own and after[rank] == before[rank]]
        if silent:
            return f"{_named(silent)} did not answer within {self.patience_seconds:g} s"
        others = {rank: count for rank, (count, _) in after.items() if rank != own}
        behind = [rank for rank, count in others.items() if count == min(others.values())]
        who = _named(behind) if behind else "another rank"
        return f"{who} did not come within {self.patience_seconds:g} s"

    def _counts(self) -> dict[int, tuple[int, int]]:
        """Of each rank how many collectives it has begun, and how often it has told."""
        found = {}
        for rank in self._ranks:
            if self._store.check([str(rank)]):
                count, beats = self._store.get(str(rank)).decode().split()
                found[rank] = int(count), int(beats)
        return found


def _stop(stop: threading.Event, thread: threading.Thread) -> None:
    stop.set()
    thread.join(timeout=_MOST_BEAT_SECONDS)


def _beat(store: Store, key: str, count: list[int], stop: threading.Event, seconds: float) -> None:
    beats, world = 0, dist.group.WORLD  # which a script may destroy
    with suppress(RuntimeError):  # the store is gone, and so is training
        while dist.group.WORLD is world and not stop.is_set():
            beats += 1
            store.set(key, f"{count[0]} {beats}")
            stop.wait(seconds)


def _wait_for(
    works: queue.SimpleQueue[dist.Work | None], waited: queue.SimpleQueue[RuntimeError | None]
) -> None:
    while (work := works.get()) is not None:
        error: RuntimeError | None = None
        try:
            work.wait()
        except RuntimeError as caught:
            error = caught
        waited.put(error)


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


class _AllGather:
    """What fully_shard gathers weights with."""

    def __init__(self, watch: ShardWatch) -> None:
        self._watch = watch

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        def begin() -> dist.Work | None:
            return _gather(output_tensor, input_tensor, group=group, async_op=True)

        if async_op:  # fully_shard waits for it elsewhere, on an accelerator
            return begin()
        self._watch.run(begin, "gathering weights")
        return None


class _ReduceScatter(_AllGather):
    """What fully_shard averages gradients with."""

    def __call__(  # type: ignore[override]
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        def begin() -> dist.Work | None:
            return _scatter(output_tensor, input_tensor, op=op, group=group, async_op=True)

        if async_op:
            return begin()
        self._watch.run(begin, "averaging gradients")
        return None


def _collective(*names: str) -> Callable[..., dist.Work | None]:
    """A function of torch.distributed by its name, which newer versions have changed."""
    every = (getattr(dist, name, None) for name in names)
    found: Callable[..., dist.Work | None] = next(each for each in every if each is not None)
    return found


_gather = _collective("all_gather_single", "all_gather_into_tensor")
_scatter = _collective("reduce_scatter_single", "reduce_scatter_tensor")
