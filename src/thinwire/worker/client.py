"""A worker of parameter servers: pushes during backward, applies every update in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from thinwire.compressor import Encoded, flatten
from thinwire.errors import ConfigError
from thinwire.gradient.keys import Key
from thinwire.gradient.pieces import Piece, batches
from thinwire.gradient.placement import place
from thinwire.model import Model, describe
from thinwire.recipe import Recipe
from thinwire.settings import check_positive, check_whole
from thinwire.transport import zeromq
from thinwire.transport.base import Connection
from thinwire.transport.keys import WorkerCurve
from thinwire.wire.messages import Push
from thinwire.worker.arrivals import Arrivals
from thinwire.worker.desk import Desk
from thinwire.worker.momentum import take_over_momentum
from thinwire.worker.sides import Round, WorkerSide, decode_into, entries

Connect = Callable[[str, float], Connection]


class Client:
    """Trains ``net`` with other workers through servers, without a process group.

    After each backward, ``step()`` sends what is left, waits for the next version of all weights'
    gradients, and does one optimizer step for every version that is there.
    """

    def __init__(
        self,
        servers: Sequence[str],
        recipe: Recipe,
        *,
        rank: int,
        workers: int,
        keys: WorkerCurve | None = None,
        insecure: bool = False,
        deadline_seconds: float = 60.0,
        seed: int = 0,
        connect: Connect | None = None,
    ) -> None:
        """``connect`` replaces the transport, for tests."""
        check_whole(workers, least=1, owner="Client", field="workers")
        check_whole(rank, least=0, owner="Client", field="rank")
        check_positive(deadline_seconds, owner="Client", field="deadline_seconds")
        if not servers:
            raise ConfigError("Client: at least one server is needed")
        self._servers, self._recipe = list(servers), recipe
        self._rank, self._workers = rank, workers
        self._deadline = deadline_seconds
        self._side = WorkerSide(recipe, rank=rank, workers=workers, seed=seed)
        self._connect = connect or _connect_with(keys, insecure=insecure)
        self._parameters: dict[str, Tensor] = {}
        self._desks: list[Desk] = []
        self.steps = 0

    def attach(self, net: nn.Module, optimizer: Optimizer) -> None:
        """Join the servers. All workers must begin with the same weights."""
        take_over_momentum(self._recipe, optimizer)
        self._optimizer = optimizer
        self._parameters = {n: p for n, p in net.named_parameters() if p.requires_grad}
        keys = [Key(name, tuple(p.shape)) for name, p in self._parameters.items()]
        own = [
            describe(keys, self._recipe, server=i, servers=len(self._servers))
            for i in range(len(self._servers))
        ]
        models = [Model(one, self._workers) for one in own]
        self._pieces = models[0].pieces
        self._owners = place(self._pieces, owners=len(self._servers))
        self._arrivals = Arrivals(self._pieces)
        self._sent: dict[int, dict[int, Encoded]] = {}
        self._desks = [
            Desk(
                lambda seconds, address=address: self._connect(address, seconds),  # type: ignore[misc]
                model.description,
                model.digest,
                self._arrivals,
                rank=self._rank,
                workers=self._workers,
                pieces=len(self._pieces),
                deadline_seconds=self._deadline,
            )
            for address, model in zip(self._servers, models, strict=True)
        ]

    @property
    def version(self) -> int:
        """How many updates were applied."""
        return self._arrivals.version

    def step(self) -> None:
        """Push the gradients, wait for the next version, and apply all versions that are there."""
        self._take_back_refused()
        self._push()
        self._arrivals.wait_for_next(deadline_seconds=self._deadline)
        while (update := self._arrivals.take_next()) is not None:
            self._apply(update)
        self.steps += 1

    def close(self) -> None:
        """Tell the servers that this worker is done."""
        for desk in self._desks:
            desk.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _push(self) -> None:
        rate = float(self._optimizer.param_groups[0]["lr"])
        round_ = Round(self.steps, rate)
        flat = {
            name: flatten(torch.zeros_like(p) if p.grad is None else p.grad)
            for name, p in self._parameters.items()
        }
        sent = self._sent.setdefault(self.steps, {})
        for server, desk in enumerate(self._desks):
            owned = [i for i, owner in enumerate(self._owners) if owner == server]
            for numbers in _batched(self._pieces, owned):
                pieces = [self._pieces[number] for number in numbers]
                encoded = [_kept(one) for one in self._side.push(pieces, flat, round_)]
                sent.update(zip(numbers, encoded, strict=True))
                message = Push(self.version, rate, entries(numbers, encoded))
                desk.push(self.steps, message)
        # A push can be refused only while it is newer than what servers call stale.
        for step in [step for step in self._sent if step < self.steps - 100]:
            del self._sent[step]

    def _apply(self, update: Sequence[Encoded]) -> None:
        mean = {name: torch.empty(p.numel()) for name, p in self._parameters.items()}
        decode_into(mean, self._pieces, update)
        for name, parameter in self._parameters.items():
            parameter.grad = mean[name].view(parameter.shape).to(parameter)
        self._optimizer.step()

    def _take_back_refused(self) -> None:
        for step, refusal in self._arrivals.take_refused():
            for number in refusal.pieces:
                self._side.compressor.take_back(self._pieces[number], self._sent[step][number])


def _kept(one: Encoded) -> Encoded:
    """With a payload of its own: it may be sent again after gradients have changed."""
    return Encoded(one.wire_id, one.numel, bytes(one.payload))


def _batched(pieces: Sequence[Piece], numbers: Sequence[int]) -> list[list[int]]:
    order = {pieces[number]: number for number in numbers}
    return [[order[p] for p in batch] for batch in batches(list(order)) if batch]


def _connect_with(keys: WorkerCurve | None, *, insecure: bool) -> Connect:
    def connect(address: str, seconds: float) -> Connection:
        return zeromq.connect(address, deadline_seconds=seconds, curve=keys, insecure=insecure)

    return connect
