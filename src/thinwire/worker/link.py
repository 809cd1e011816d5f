"""Frames between the ranks of a process group. Every wait has a deadline and names who is late."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from thinwire.errors import RemoteProtocolError, WorkerLost
from thinwire.wire import frame
from thinwire.wire.body import shortened
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Leave, Message, Reason, decode, encode_into
from thinwire.worker.background import started_in_background
from thinwire.worker.buffers import Buffers
from thinwire.worker.spans import Span, unwatched

LEAVE_NBYTES = 1 << 12
"""Room for the frame that says why a rank leaves, which may come instead of any other."""

_FRAMES, _ANNOUNCED, _FORESEEN = 0, 1, 2
"""Tags: messages of each kind arrive in order, whatever is between them of the others."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A message on its way, from or to ``rank``. Its buffer belongs to it until it is done.

    ``work`` is an error if it could not even begin: that is raised by whoever waits for it.
    """

    rank: int
    work: dist.Work | RuntimeError
    buffer: Tensor
    pooled: bool = True
    """Whether the buffer is one of the link's own, to be used again."""


class Link:
    """Point-to-point frames over a gloo group that nobody else uses.

    Not collectives: when one of those fails, it does not say because of whom. Between two ranks
    frames arrive in the order in which they were sent. Only one thread may send and receive, any
    may wait.
    """

    def __init__(
        self, ranks: Sequence[int], *, deadline_seconds: float, patience_seconds: float
    ) -> None:
        """``ranks`` are global ones; all of them must make their link at the same time.

        Peers have ``patience_seconds`` to send a frame: less than the deadline, if others wait for
        this rank meanwhile, so that they can be told in time for whom.
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
        self, ranks: Sequence[int], message: Message, *, step: int, most_nbytes: int
    ) -> list[Pending]:
        """Start to send a frame of at most ``most_nbytes`` to ``ranks``, from one buffer."""
        if not ranks:
            return []
        buffer = self._buffers.take(most_nbytes)
        nbytes = self._write(buffer, message, step)
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

    def arrived(self, pending: Pending, nbytes: int, *, what: str) -> None:
        """Wait for what comes beside a frame."""
        self._wait(pending, self._patience, f"did not send all of {what}")
        self.received_nbytes += nbytes

    def frame(self, pending: Pending, *, step: int, what: str) -> Frame:
        """Wait for a frame, of this step. It is a view of the buffer of ``pending``."""
        self._wait(pending, self._patience, f"did not send all of {what}")
        data = pending.buffer.numpy().data
        try:
            nbytes = frame.frame_nbytes(data)
            found = frame.unpack(data[:nbytes])
            message = decode(found) if found.kind == Leave.kind else None
        except RemoteProtocolError as error:
            who = f"rank {self.ranks[pending.rank]}"
            raise RemoteProtocolError(f"{who} sent no valid frame for {what}: {error}") from error
        self.received_nbytes += nbytes
        if isinstance(message, Leave):
            raise WorkerLost(message.text)
        if (found.worker, found.step) != (pending.rank, step):
            raise RemoteProtocolError(
                f"a frame of rank {self.ranks[pending.rank]} says rank {found.worker}, step "
                f"{found.step}, expected rank {pending.rank}, step {step}"
            )
        return found

    def finish(self, sent: Sequence[Pending], *, what: str) -> None:
        """Wait until frames are sent, and let their buffers be used again."""
        for pending in sent:
            self._wait(pending, self._deadline, f"did not take {what}")
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

    def _write(self, buffer: Tensor, message: Message, step: int) -> int:
        view = buffer.numpy().data
        return encode_into(view, message, run=1, epoch=1, worker=self.rank, step=step)

    def _start(
        self, rank: int, buffer: Tensor, nbytes: int, tag: int = _FRAMES, *, pooled: bool = True
    ) -> Pending:
        self.sent_nbytes += nbytes
        try:
            work: dist.Work | RuntimeError = self._group.send([buffer[:nbytes]], rank, tag)
        except RuntimeError as error:
            work = error
        pending = Pending(rank, work, buffer, pooled)
        # Kept, also if nobody waits for it any more, after an error. gloo would stop at a message
        # that is gone, and never send those behind it: the one that says why this rank leaves.
        self._unfinished[id(pending)] = pending
        return pending

    def _expect(self, rank: int, buffer: Tensor, tag: int, *, pooled: bool = True) -> Pending:
        try:
            work = self._group.recv([buffer], rank, tag)
        except RuntimeError as error:
            return Pending(rank, error, buffer, pooled)
        return Pending(rank, work, buffer, pooled)

    def _wait(self, pending: Pending, longest: timedelta, what: str) -> None:
        try:
            if isinstance(pending.work, RuntimeError):
                raise pending.work
            with self.span("wait for rank", self.ranks[pending.rank]):
                pending.work.wait(longest)
        except RuntimeError as error:
            reason = str(error).partition(". This is typically caused by")[0]
            raise WorkerLost(
                f"rank {self.ranks[pending.rank]} is gone, or {what}, within "
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
