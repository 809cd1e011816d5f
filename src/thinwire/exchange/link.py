"""``Link``: frames between ranks of a process group. A wait that times out names the rank."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from thinwire.codec.arena import Slab
from thinwire.errors import RemoteProtocolError, WorkerLost
from thinwire.exchange.pipeline import started_in_background
from thinwire.watch.trace import Span, unwatched
from thinwire.wire import frame
from thinwire.wire.body import shortened
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Leave, Message, Reason, decode, encode_into


class Buffers:
    """Byte tensors in sizes of powers of two. Threads may take and give back at the same time."""

    def __init__(self) -> None:
        self._free: dict[int, list[Tensor]] = {}

    def take(self, nbytes: int) -> Tensor:
        """At least ``nbytes`` bytes, uninitialised."""
        size = 1 << max(nbytes - 1, 0).bit_length()
        try:
            return self._free.setdefault(size, []).pop()
        except IndexError:
            return torch.empty(size, dtype=torch.uint8)

    def give(self, *buffers: Tensor) -> None:
        """Give buffers back to the pool."""
        for buffer in buffers:
            self._free[buffer.numel()].append(buffer)


def slab(buffer: Tensor) -> Slab:
    """An arena for payloads in a buffer, until that is given back."""
    return Slab(buffer.numpy().data)


LEAVE_NBYTES = 1 << 12
"""Room for the frame that says why a rank leaves, which may come instead of any other."""

_FRAMES, _ANNOUNCED, _FORESEEN = 0, 1, 2
"""Tags: messages of each kind arrive in order, whatever is between them of the others."""

_LEAST_WAIT = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Pending:
    """A message on its way, from or to ``rank``. Its buffer belongs to it until it is done.

    ``work`` is an error if it could not even begin: waiting for it raises that.
    """

    rank: int
    work: dist.Work | RuntimeError
    buffer: Tensor
    pooled: bool = True
    """Whether the buffer is one of the link's own, to be used again."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a stage of a unit waits for, and since when: all of its waits share one deadline."""

    what: str
    since: float = field(default_factory=time.monotonic)

    def left_of(self, longest: timedelta) -> timedelta:
        """Never nothing, which gloo takes for no limit, and what is there already is no wait."""
        return max(longest - timedelta(seconds=time.monotonic() - self.since), _LEAST_WAIT)


class Link:
    """Point-to-point frames over a gloo group of its own.

    Not collectives: when one of those fails, it does not say because of which rank. Between two
    ranks frames arrive in the order in which they were sent. Only one thread may send and receive,
    any may wait.
    """

    def __init__(
        self, ranks: Sequence[int], *, deadline_seconds: float, patience_seconds: float
    ) -> None:
        """``ranks`` are global ones; all of them must make their link at the same time.

        Peers have ``patience_seconds`` to send a frame: less than the deadline, if others wait for
        this rank meanwhile, so that it can tell them in time which rank is late.
        """
        self._deadline = timedelta(seconds=deadline_seconds)
        self._patience = timedelta(seconds=patience_seconds)
        self.ranks = list(ranks)
        self._group = _new_group(self.ranks, self._deadline)
        self._buffers = Buffers()
        self._unfinished: dict[int, Pending] = {}
        self.span: Span = unwatched
        self.rank = self.ranks.index(dist.get_rank())
        self.size = len(self.ranks)
        self.peers = [rank for rank in range(self.size) if rank != self.rank]
        self.sent_nbytes = self.received_nbytes = 0

    def send(
        self, ranks: Sequence[int], message: Message, *, step: int, most_nbytes: int, epoch: int = 1
    ) -> list[Pending]:
        """Start to send a frame of at most ``most_nbytes`` to ``ranks``, from one buffer.

        ``epoch`` is of the sender's choice; it is in the header, where servers count their starts.
        """
        if not ranks:
            return []
        buffer = self._buffers.take(most_nbytes)
        nbytes = self._write(buffer, message, step, epoch)
        return [self._start(rank, buffer, nbytes) for rank in ranks]

    def send_beside(self, ranks: Sequence[int], data: Tensor, *, foreseen: bool) -> list[Pending]:
        """Start to send bytes that go beside a frame, from where they are: they must stay there.

        Receivers foresee them, or learn of them from the frame, which must come before them then.
        """
        tag = _beside(foreseen)
        return [self._start(rank, data, data.numel(), tag, pooled=False) for rank in ranks]

    def receive(self, rank: int, *, most_nbytes: int) -> Pending:
        """Start to receive a frame of at most ``most_nbytes``."""
        buffer = self._buffers.take(max(most_nbytes, LEAVE_NBYTES))
        # A message shorter than a header must not be completed by what was here before.
        buffer.numpy()[: frame.HEADER_NBYTES] = 0
        return self._expect(rank, buffer, _FRAMES)

    def receive_beside(
        self, rank: int, nbytes: int, room: Tensor | None, *, foreseen: bool
    ) -> Pending:
        """Start to receive what comes beside a frame: into ``room`` if it is given.

        In the order in which it was sent, by the thread that expects frames if it is ``foreseen``;
        else by the one that waits for them, when the frame has come.
        """
        if room is not None:
            return self._expect(rank, room, _beside(foreseen), pooled=False)
        return self._expect(rank, self._buffers.take(nbytes), _beside(foreseen))

    def arrived(self, pending: Pending, nbytes: int, wait: Wait) -> None:
        """Wait for what comes beside a frame."""
        self._wait(pending, self._patience, wait, "send all of")
        self.received_nbytes += nbytes

    def frame(self, pending: Pending, wait: Wait, *, step: int) -> Frame:
        """Wait for a frame, of this step. It is a view of the buffer of ``pending``."""
        self._wait(pending, self._patience, wait, "send all of")
        data = pending.buffer.numpy().data
        try:
            nbytes = frame.frame_nbytes(data)
            received = frame.unpack(data[:nbytes])
            message = decode(received) if received.kind == Leave.kind else None
        except RemoteProtocolError as error:
            raise RemoteProtocolError(
                f"rank {self.ranks[pending.rank]} sent no valid frame for {wait.what}: {error}"
            ) from error
        self.received_nbytes += nbytes
        if isinstance(message, Leave):
            raise WorkerLost(message.text)
        if (received.worker, received.step) != (pending.rank, step):
            raise RemoteProtocolError(
                f"a frame of rank {self.ranks[pending.rank]} says rank {received.worker}, step "
                f"{received.step}, expected rank {pending.rank}, step {step}"
            )
        return received

    def finish(self, sent: Sequence[Pending], wait: Wait) -> None:
        """Wait until frames are sent, and let their buffers be used again."""
        for pending in sent:
            self._wait(pending, self._deadline, wait, "take")
            self._unfinished.pop(id(pending), None)
        self.give_back(sent)

    def give_back(self, used: Iterable[Pending]) -> None:
        """Let the buffers of messages that are done be used again."""
        pooled = {id(pending.buffer): pending.buffer for pending in used if pending.pooled}
        self._buffers.give(*pooled.values())

    def leave(self, text: str, *, step: int) -> None:
        """Tell peers, instead of what they wait for, why this rank stops. Any thread may; once."""
        message = Leave(Reason.LOST, shortened(text))
        self.send(self.peers, message, step=step, most_nbytes=LEAVE_NBYTES)

    def close(self) -> None:
        """Ranks do not say that they are done: the last step was the same for all."""

    def _write(self, buffer: Tensor, message: Message, step: int, epoch: int) -> int:
        view = buffer.numpy().data
        return encode_into(view, message, run=1, epoch=epoch, worker=self.rank, step=step)

    def _start(
        self, rank: int, buffer: Tensor, nbytes: int, tag: int = _FRAMES, *, pooled: bool = True
    ) -> Pending:
        self.sent_nbytes += nbytes
        try:
            work: dist.Work | RuntimeError = self._group.send([buffer[:nbytes]], rank, tag)
        except RuntimeError as error:
            work = error
        pending = Pending(rank, work, buffer, pooled)
        # Kept, also after an error, when no thread waits for it any more. gloo would stop at a
        # message that is gone, and never send those behind it: such as why this rank leaves.
        self._unfinished[id(pending)] = pending
        return pending

    def _expect(self, rank: int, buffer: Tensor, tag: int, *, pooled: bool = True) -> Pending:
        try:
            work = self._group.recv([buffer], rank, tag)
        except RuntimeError as error:
            return Pending(rank, error, buffer, pooled)
        return Pending(rank, work, buffer, pooled)

    def _wait(self, pending: Pending, longest: timedelta, wait: Wait, verb: str) -> None:
        try:
            if isinstance(pending.work, RuntimeError):
                raise pending.work
            with self.span("wait for rank", self.ranks[pending.rank]):
                pending.work.wait(wait.left_of(longest))
        except RuntimeError as error:
            reason = str(error).partition(". This is typically caused by")[0]
            raise WorkerLost(
                f"rank {self.ranks[pending.rank]} is gone, or did not {verb} {wait.what}, within "
                f"{longest.total_seconds():g} s ({reason})"
            ) from error


def _beside(foreseen: bool) -> int:
    return _FORESEEN if foreseen else _ANNOUNCED


_stores_made: Counter[tuple[int, ...]] = Counter()


def new_store(ranks: Sequence[int]) -> Store:
    """A store of these ranks alone, all of which must make theirs in the same order."""
    key = tuple(ranks)
    _stores_made[key] += 1
    members = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    name = f"thinwire/{members}/{_stores_made[key]}"
    return PrefixStore(name, dist.distributed_c10d._get_default_store())


def _new_group(ranks: Sequence[int], deadline: timedelta) -> dist.ProcessGroup:
    """A gloo group that torch.distributed keeps no list of.

    ``dist.new_group`` wants all ranks of the program, or names a group by how many groups its
    members have seen, which differs among them: only the first rank of a host talks to others.
    """
    place = list(ranks).index(dist.get_rank())
    try:
        with started_in_background():
            group = dist.ProcessGroupGloo(new_store(ranks), place, len(ranks), deadline)
    except RuntimeError as error:
        raise WorkerLost(f"one of the ranks {list(ranks)} cannot be reached ({error})") from error
    return cast(dist.ProcessGroup, group)  # which its stub does not say
