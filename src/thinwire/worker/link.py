"""Frames between the ranks of a process group. Every wait has a deadline and names who is late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from thinwire.errors import RemoteProtocolError, WorkerLost
from thinwire.wire import frame
from thinwire.wire.frame import Frame
from thinwire.wire.messages import Message, encode_into
from thinwire.worker.buffers import Buffers


@dataclass(frozen=True, slots=True)
class Pending:
    """A message on its way, from or to ``rank``. Its buffer belongs to it until it is done."""

    rank: int
    work: dist.Work | None
    buffer: Tensor


class Link:
    """Point-to-point frames over a gloo group that nobody else uses.

    Not collectives: when one of those fails, it does not say because of whom. Between two ranks
    frames arrive in the order in which they were sent. Only one thread may send and receive, any
    may wait.
    """

    def __init__(self, ranks: Sequence[int], *, deadline_seconds: float) -> None:
        """``ranks`` are global ones; all of them must make their link at the same time."""
        self._deadline = timedelta(seconds=deadline_seconds)
        self.ranks = list(ranks)
        self._group = dist.new_group(
            self.ranks, timeout=self._deadline, backend="gloo", use_local_synchronization=True
        )
        self._buffers = Buffers()
        self.rank = self.ranks.index(dist.get_rank())
        self.size = len(self.ranks)
        self.peers = [rank for rank in range(self.size) if rank != self.rank]
        self.sent_nbytes = self.received_nbytes = 0

    def send(self, rank: int, message: Message, *, step: int, most_nbytes: int) -> Pending:
        """Start to send a frame of at most ``most_nbytes``."""
        buffer = self._buffers.take(most_nbytes)
        return self._start(rank, buffer, self._write(buffer, message, step))

    def send_all(self, message: Message, *, step: int, most_nbytes: int) -> list[Pending]:
        """Start to send every peer the same frame. All of them share one buffer."""
        buffer = self._buffers.take(most_nbytes)
        nbytes = self._write(buffer, message, step)
        return [self._start(rank, buffer, nbytes) for rank in self.peers]

    def receive(self, rank: int, *, most_nbytes: int) -> Pending:
        """Start to receive a frame of at most ``most_nbytes``."""
        buffer = self._buffers.take(most_nbytes)
        # A message shorter than a header must not be completed by what was here before.
        buffer[: frame.HEADER_NBYTES] = 0
        return Pending(rank, dist.irecv(buffer, self.ranks[rank], group=self._group), buffer)

    def frame(self, pending: Pending, *, step: int, what: str) -> Frame:
        """Wait for a frame, of this step. It is a view of the buffer of ``pending``."""
        self._wait(pending, "sent nothing", what)
        data = pending.buffer.numpy().data
        nbytes = frame.frame_nbytes(data)
        self.received_nbytes += nbytes
        found = frame.unpack(data[:nbytes])
        if (found.worker, found.step) != (pending.rank, step):
            raise RemoteProtocolError(
                f"a frame of rank {self.ranks[pending.rank]} says rank {found.worker}, step "
                f"{found.step}, expected rank {pending.rank}, step {step}"
            )
        return found

    def finish(self, sent: Sequence[Pending], *, what: str) -> None:
        """Wait until frames are sent, and let their buffers be used again."""
        for pending in sent:
            self._wait(pending, "took nothing", what)
        self.give_back(sent)

    def give_back(self, used: Iterable[Pending]) -> None:
        """Let the buffers of messages that are done be used again."""
        self._buffers.give(*{id(pending.buffer): pending.buffer for pending in used}.values())

    def close(self) -> None:
        dist.destroy_process_group(self._group)

    def _write(self, buffer: Tensor, message: Message, step: int) -> int:
        view = buffer.numpy().data
        return encode_into(view, message, run=1, epoch=1, worker=self.rank, step=step)

    def _start(self, rank: int, buffer: Tensor, nbytes: int) -> Pending:
        self.sent_nbytes += nbytes
        work = dist.isend(buffer[:nbytes], self.ranks[rank], group=self._group)
        return Pending(rank, work, buffer)

    def _wait(self, pending: Pending, verb: str, what: str) -> None:
        try:
            if pending.work is not None:
                pending.work.wait(self._deadline)
        except RuntimeError as error:
            seconds = self._deadline.total_seconds()
            raise WorkerLost(
                f"rank {self.ranks[pending.rank]} {verb} within {seconds:g} s, or is gone: "
                f"waited for {what} ({error})"
            ) from error
