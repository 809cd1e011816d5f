"""``LocalWorkers``: n workers of one process, each with weights of its own between rounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError, NonFiniteError
from thinwire.gradient.pieces import piece_numel_for
from thinwire.local.global_weights import Changes, GlobalWeights
from thinwire.local.rounds import Rounds, divide
from thinwire.recipe import Recipe
from thinwire.virtual.exchange import Exchanged, VirtualExchange
from thinwire.virtual.replica import LossOf


@dataclass(slots=True)
class Worker:
    """What is a worker's own: weights, other tensors of the network, the optimizer's state."""

    tensors: dict[str, Tensor]
    optimizer: defaultdict[Tensor, Any] = field(default_factory=lambda: defaultdict(dict))
    under_way: dict[int, Changes] = field(default_factory=dict)


class LocalWorkers:
    """Takes ``net`` and ``optimizer`` from worker to worker. Between steps ``net`` has the global
    weights."""

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        recipe: Recipe,
        rounds: Rounds,
        *,
        workers: int,
        seed: int,
        piece_numel: int | None,
    ) -> None:
        self._net, self._optimizer, self._rounds = net, optimizer, rounds
        self.weights = GlobalWeights(net, recipe)
        keys, numels = self.weights.keys, {key.name: key.numel for key in self.weights.keys}
        parts = divide(numels, rounds.fragments)
        self._fragments = parts
        piece_numel = piece_numel or piece_numel_for(keys, owners=workers)  # as among ranks
        self._exchanges = [
            VirtualExchange(
                recipe,
                [key for key in keys if key.name in set(names)],
                workers=workers,
                seed=seed,
                piece_numel=piece_numel,
            )
            for names in parts
        ]
        self._shown = _tensors(net)
        self._workers = [Worker(self._copied()) for _ in range(workers)]
        self._exchanged = 0
        self.last: Exchanged | None = None
        """The exchange that began in the newest step, if one did."""
        if optimizer.state:
            raise ConfigError("VirtualCluster: local steps begin with a new optimizer")

    def step(self, loss_of: LossOf, *, step: int) -> float:
        """Let every worker make one step, the ``step``-th of its own, and exchange what is due.
        Returns their mean loss."""
        losses = [self._train(number, loss_of) for number in range(len(self._workers))]
        self.last = None
        for due in self._rounds.due(step + 1):
            if due.begins:
                self._exchange(due.fragment, goes_on=self._rounds.overlaps)
            else:
                self._merge(due.fragment)
        self._show()
        return math.fsum(losses) / len(losses)

    def synchronize(self) -> list[Exchanged]:
        """Exchange all that is left; returns what travelled."""
        for fragment in list(self._workers[0].under_way):
            self._merge(fragment)
        travelled: list[Exchanged] = []
        for fragment in range(len(self._fragments)):
            self.last = None
            self._exchange(fragment, goes_on=False)
            self._merge(fragment)
            travelled += [] if self.last is None else [self.last]
        self._show()
        return travelled

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on, but for the optimizer's groups."""
        return {
            "exchanged": self._exchanged,
            "weights": self.weights.state_dict(),
            "exchanges": [exchange.state_dict() for exchange in self._exchanges],
            "workers": [self._state_of(worker) for worker in self._workers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` of as many workers returned."""
        self._exchanged = state["exchanged"]
        self.weights.load_state_dict(state["weights"])
        for exchange, own in zip(self._exchanges, state["exchanges"], strict=True):
            exchange.load_state_dict(own)
        for worker, own in zip(self._workers, state["workers"], strict=True):
            self._load(worker, own)
        self._show()

    def _train(self, number: int, loss_of: LossOf) -> float:
        self._use(self._workers[number])
        self._optimizer.zero_grad()
        loss = loss_of(number)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return float(loss.detach())

    def _exchange(self, fragment: int, *, goes_on: bool) -> None:
        """Average what workers have changed of a fragment."""
        names, exchange = self._fragments[fragment], self._exchanges[fragment]
        for worker in self._workers:
            self._use(worker)
            changes = self.weights.changes(names, goes_on=goes_on)
            worker.under_way[fragment] = changes
        number, self._exchanged = self._exchanged, self._exchanged + 1
        if not names:
            return
        sent = [worker.under_way[fragment].flat for worker in self._workers]
        self.last = exchanged = exchange.average(sent, step=number)
        for worker in self._workers:
            for name, mean in exchanged.mean.items():
                worker.under_way[fragment].flat[name] = mean.reshape(-1)

    def _merge(self, fragment: int) -> None:
        if fragment not in self._workers[0].under_way:
            return
        changes = [worker.under_way.pop(fragment) for worker in self._workers]
        for name, mean in changes[0].flat.items():
            if not bool(mean.isfinite().all()):
                raise NonFiniteError(f"{name} is not finite: training has diverged")
        self.weights.apply(changes[0].flat)
        for worker, own in zip(self._workers, changes, strict=True):
            self._use(worker)
            self.weights.merge(own)

    def _use(self, worker: Worker) -> None:
        """Let the network and the optimizer be this worker's. Nothing is copied."""
        for name, tensor in self._shown.items():
            tensor.data = worker.tensors[name]
        self._optimizer.state = worker.optimizer

    def _show(self) -> None:
        """Let the network have the global weights, and counters of worker 0."""
        self._use(self._workers[0])
        for name, local in self.weights.local.items():
            local.data = self.weights[name].to(local)

    def _copied(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._shown.items()}

    def _state_of(self, worker: Worker) -> dict[str, Any]:
        self._optimizer.state = worker.optimizer
        state = self._optimizer.state_dict()["state"]
        return {
            "tensors": {name: tensor.clone() for name, tensor in worker.tensors.items()},
            "optimizer": state,
            "under_way": {n: (c.flat, c.begun) for n, c in worker.under_way.items()},
        }

    def _load(self, worker: Worker, state: Mapping[str, Any]) -> None:
        for name, tensor in state["tensors"].items():
            worker.tensors[name].copy_(tensor)
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        worker.optimizer = self._optimizer.state
        worker.under_way = {n: Changes(*parts) for n, parts in state["under_way"].items()}


def _tensors(net: nn.Module) -> dict[str, Tensor]:
    """All that differs from worker to worker."""
    trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
    return {**trained, **dict(net.named_buffers())}


def check_workers(values: Sequence[object], rounds: Rounds) -> None:
    """Refuse what local steps cannot have."""
    if rounds.is_auto:
        raise ConfigError(
            "VirtualCluster: its workers are equally fast with local steps: give their number in a "
            "round"
        )
    if any(value is not None for value in values):
        raise ConfigError(
            "VirtualCluster: local steps are synchronous here: leave quorum, staleness and speeds "
            "out"
        )
