"""``replay_log``: weights at any version, from the logs of all servers and earlier weights.

Every worker applies every update in order, by one optimizer step each. So does this, and gets the
same weights, bit for bit. Reads logs without changing them, also while servers write them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError, LogError, ProtocolError
from thinwire.exchange.roles import decode_into
from thinwire.gradient.pieces import Key, Piece
from thinwire.local.speeds import SPEEDS
from thinwire.optim.takeover import use_momentum
from thinwire.recipe_names import typed_stored_recipe
from thinwire.recipe_text import read_stored_recipe
from thinwire.replay.kept_log import KeptLog, Rate, check_one_run, read_log
from thinwire.replay.target import Rates, Target
from thinwire.wire.body import EncodedBytes
from thinwire.wire.messages import Describe, Update, decode


def replay_log(
    net: nn.Module,
    optimizer: Optimizer,
    log_dirs: Sequence[str | PathLike[str]],
    *,
    start: int = 0,
    version: int | None = None,
    rate: float | None = None,
    scheduler: LRScheduler | None = None,
) -> int:
    """Take ``net`` and ``optimizer`` from version ``start`` to ``version``; returns that.

    For local steps ``optimizer`` is that of the global weights, such as a ``torch.optim.SGD`` with
    ``lr=1`` for ``local_average()``; averaged buffers need none.

    Both must be as a worker had them at ``start``: before training that is 0, in a checkpoint
    ``client.version``. ``log_dirs`` are the log folders of all servers of one run, in any order.
    Without ``version`` it goes to the newest that all servers have. Learning rates are those that
    workers sent with their gradients, unless ``rate`` is given, or ``scheduler``: as it was at
    ``start``, it is stepped after each version.

    Raises ConfigError or LogError before anything is changed.
    """
    kept = KeptRun(log_dirs)
    if scheduler is not None and rate is None:
        rate = 0.0  # none is set: they are the scheduler's
    buffers = dict(net.named_buffers())
    tensors = {**buffers, **dict(net.named_parameters())}
    steps = kept.steps(tensors, optimizer, start=start, version=version, rate=rate, buffers=buffers)
    for reached in steps:
        start = reached
        if scheduler is not None:
            scheduler.step()
    return start


class KeptRun:
    """What the logs of all servers keep: the updates after version ``since``, up to ``last``."""

    def __init__(self, log_dirs: Sequence[str | PathLike[str]]) -> None:
        self.logs = [read_log(Path(folder)) for folder in log_dirs]
        check_one_run(self.logs)
        self.description = self.logs[0].description
        self.since = max(log.history.since for log in self.logs)
        self._pieces = _cut_as_numbered(self.description, self.logs)
        newest = [version for log in self.logs for version in log.pushed.newest.values()]
        self.last = max(self.since, min(newest)) if self._pieces else self.since

    @property
    def run(self) -> int:
        return self.logs[0].run

    @property
    def recipe(self) -> str:
        """As a user would type it."""
        return typed_stored_recipe(self.description.recipe)

    @property
    def versions(self) -> str:
        """Those that are kept, in words."""
        return f"versions {self.since + 1} to {self.last}" if self.last > self.since else "none"

    def trained(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that were trained, in their order. Raises ConfigError if one differs."""
        trained = {}
        for tensor in self.description.tensors:
            if tensor.name == SPEEDS:
                continue
            parameter = parameters.get(tensor.name)
            if parameter is None or not _fits(parameter, tensor.shape):
                here = "is not there" if parameter is None else f"is {list(parameter.shape)}"
                raise ConfigError(
                    f"replay: {tensor.name} {here}, but the servers had {list(tensor.shape)}: "
                    "these weights are of another model"
                )
            trained[tensor.name] = parameter
        return trained

    def steps(
        self,
        parameters: Mapping[str, Tensor],
        optimizer: Optimizer,
        *,
        start: int,
        version: int | None = None,
        rate: float | None = None,
        buffers: Collection[str] = (),
    ) -> Iterator[int]:
        """As ``replay_log``, version by version: each is yielded when its step is done.

        ``parameters`` are by name, and may be more than were trained; ``buffers`` are averaged, if
        they were.
        """
        version = self.last if version is None else version
        self._check_versions(start, version)
        trained = self.trained(parameters)
        rates = self._rates(start, version) if rate is None else {}
        recipe = read_stored_recipe(self.description.recipe)
        momentum = use_momentum(recipe, optimizer, trained)
        target = Target(trained, buffers, optimizer, Rates(optimizer, rates, rate), momentum)
        return self._steps(target, start, version)

    def _steps(self, target: Target, start: int, stop: int) -> Iterator[int]:
        mean = {t.name: torch.empty(math.prod(t.shape)) for t in self.description.tensors}
        for version, encoded in self._versions(start, stop):
            decode_into(mean, self._pieces, encoded)
            target.step(version, mean)
            yield version

    def _versions(self, start: int, stop: int) -> Iterator[tuple[int, list[EncodedBytes]]]:
        """The updates of each version, by number of piece."""
        streams = [_updates(log, start) for log in self.logs]
        merged = heapq.merge(*streams, key=_version)
        for version, updates in groupby(merged, key=_version):
            if version > stop:
                return
            entries = {entry.piece: entry for update in updates for entry in update.entries}
            if len(entries) != len(self._pieces):
                raise LogError(f"replay: version {version} lacks some pieces: the logs do not fit")
            yield version, [entries[number].encoded for number in range(len(self._pieces))]

    def _check_versions(self, start: int, version: int) -> None:
        if version < start:
            raise ConfigError(
                f"replay: version {version} is wanted, but the checkpoint is of version {start}: "
                "begin with an earlier one"
            )
        if start == version or (self.since <= start and version <= self.last):
            return
        raise LogError(
            f"replay: the updates of versions {start + 1} to {version} are wanted, but of those "
            f"that all servers have the logs keep {self.versions}; a checkpoint must be of version "
            f"{self.since} or later"
        )

    def _rates(self, start: int, version: int) -> dict[int, float]:
        """By version. One without pushes has the rate of the version before.

        A push carries the rate that its worker would apply the next version with, so that is where
        it is looked for first.
        """
        rates: dict[int, float] = {}
        newest: Rate | None = None
        for number in range(self.since + 1, version + 1):
            newest = self._newest_push(number) or newest
            if newest is not None:
                rates[number] = newest.learning_rate
            elif number > start:
                raise LogError(
                    f"replay: the pushes of version {number} are deleted, and with them its "
                    f"learning rate: give the rate, or begin with a checkpoint of version {number} "
                    "or later"
                )
        return rates

    def _newest_push(self, version: int) -> Rate | None:
        for rates in (
            [log.pushed.rates for log in self.logs],
            [log.pushed.counted for log in self.logs],
        ):
            pushes = [of_log[version] for of_log in rates if version in of_log]
            if pushes:
                return max(pushes)
        return None


def _fits(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Servers know buffers as vectors, whatever their shape."""
    return shape in (tuple(tensor.shape), () if tensor.requires_grad else (tensor.numel(),))


def _cut_as_numbered(description: Describe, logs: Iterable[KeptLog]) -> list[Piece]:
    """The pieces as the workers cut them, from their sizes; none if one is not known yet.

    The cut depends on the number of workers, which no log has.
    """
    numels = {number: numel for log in logs for number, numel in log.pushed.numels.items()}
    pieces: list[Piece] = []
    for tensor in description.tensors:
        key, start = Key(tensor.name, tensor.shape), 0
        while start < key.numel or not (pieces and pieces[-1].key == key):
            if len(pieces) not in numels:
                return []
            stop = start + numels[len(pieces)]
            if stop > key.numel or (stop == start and key.numel):
                raise LogError(f"replay: the pieces in the logs do not make up {tensor.name}")
            pieces.append(Piece(key, start, stop))
            start = stop
    return pieces


def _updates(log: KeptLog, start: int) -> Iterator[Update]:
    for frame in log.history.updates(after=start):
        try:
            message = decode(frame)
        except ProtocolError as error:
            raise LogError(f"log: {log.folder}: {error}") from error
        if isinstance(message, Update):
            yield message


def _version(update: Update) -> int:
    return update.version
