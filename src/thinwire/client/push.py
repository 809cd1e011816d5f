"""``ReadyGradients`` notices complete gradients; ``Pushing`` compresses and sends them to servers.

No residual may be read while a push is under way.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from thinwire.client.servers import Servers
from thinwire.compressor.compressor import Compressor
from thinwire.compressor.encoded import decoded
from thinwire.errors import ConfigError
from thinwire.exchange.resharding import by_parameter, by_piece
from thinwire.exchange.roles import WorkerRole, finite_push, norm_of, slice_of
from thinwire.gradient.pieces import Piece, flatten
from thinwire.gradient.steps import StepInfo
from thinwire.recipe import Recipe
from thinwire.watch.stats import Tally
from thinwire.wire.body import Entry

PUSH_NUMEL = 1 << 18
"""Elements that are worth a message of their own while backward goes on."""


class ReadyGradients:
    """The gradients of one step that are ready, and those of them that were not taken yet."""

    def __init__(self) -> None:
        self._parameters: Mapping[str, Tensor] = {}
        self._handles: list[RemovableHandle] = []
        self._paused = False
        self._untaken: list[str] = []
        self._versions: dict[str, int] = {}

    def watch(self, parameters: Mapping[str, Tensor], on_enough: Callable[[], None] | None) -> None:
        """Collect from these. ``on_enough`` is called during backward when a push is worth it;
        without it, no gradient is ready before ``add_rest``."""
        self._parameters = parameters
        if on_enough is not None:
            for name, parameter in parameters.items():
                hook = self._hook(name, on_enough)
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._handles.append(handle)

    def unwatch(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No gradient is ready in here."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def add_rest(self) -> None:
        """Backward is over: every gradient is ready."""
        for name, parameter in self._parameters.items():
            if name not in self._versions:
                self._add(name, parameter)

    def take(self) -> list[str]:
        """The names of those that were not taken yet."""
        names, self._untaken = self._untaken, []
        return names

    def clear(self) -> None:
        """The step is done."""
        self._versions.clear()

    def check_unchanged(self) -> None:
        """Raise ConfigError if a gradient was changed that may have been sent already."""
        for name, version in self._versions.items():
            grad = self._parameters[name].grad
            if grad is None or grad._version != version:
                raise ConfigError(
                    f"the gradient of {name} was changed after backward, which may have sent it "
                    "already: use Client(..., overlap=False), or a recipe that clips"
                )

    def _hook(self, name: str, on_enough: Callable[[], None]) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            if self._paused:
                return
            if name in self._versions:
                raise ConfigError(
                    f"{name} has a second gradient before client.step(): put all backward passes "
                    "of a step but the last into client.no_sync(), and after one that fails call "
                    "client.step() before the next, because what it gave may be sent already"
                )
            self._add(name, parameter)
            if sum(self._parameters[n].numel() for n in self._untaken) >= PUSH_NUMEL:
                on_enough()

        return ready

    def _add(self, name: str, parameter: Tensor) -> None:
        self._versions[name] = -1 if parameter.grad is None else parameter.grad._version
        self._untaken.append(name)


_logger = logging.getLogger(__name__)


class RefusedPushes:
    """Pushes that a server has not counted: they go into the residual, or are kept here if the
    recipe has none. So every gradient counts exactly once."""

    def __init__(self, compressor: Compressor, pieces: Sequence[Piece], *, residual: bool) -> None:
        self._compressor, self._pieces, self._residual = compressor, pieces, residual
        self.kept: dict[str, Tensor] = {}
        """By the name of the piece."""

    def take(self, entries: Collection[Entry]) -> None:
        for entry in entries:
            piece, sent = self._pieces[entry.piece], entry.encoded
            if self._residual:
                self._compressor.take_back(piece, sent)
            elif piece.name in self.kept:
                self.kept[piece.name] += decoded(sent)
            else:
                self.kept[piece.name] = decoded(sent)

    def add_to(self, flat: dict[str, Tensor], pieces: Collection[Piece]) -> None:
        """Add what is kept for these pieces to their gradients, of which copies are made."""
        copied: set[str] = set()
        for piece in pieces:
            kept = self.kept.pop(piece.name, None)
            if kept is not None:
                name = piece.key.name
                if name not in copied:
                    flat[name] = flat[name].clone()
                    copied.add(name)
                slice_of(flat, piece).add_(kept)

    def load(self, kept: Mapping[str, Tensor]) -> None:
        self.kept = {name: tensor.detach().clone() for name, tensor in kept.items()}


class Pushing:
    """Sends gradients of named parameters to the servers that own their pieces."""

    def __init__(
        self,
        servers: Servers,
        parameters: Mapping[str, Tensor],
        recipe: Recipe,
        role: WorkerRole,
        tally: Tally,
    ) -> None:
        self._servers, self._parameters, self.recipe = servers, parameters, recipe
        self._role, self._tally = role, tally
        residual = "residual" in recipe.push_feedback.init(0)
        self._refused = RefusedPushes(role.compressor, servers.pieces, residual=residual)
        self._numbers: dict[str, list[int]] = {name: [] for name in parameters}
        for number, piece in enumerate(servers.pieces):
            self._numbers[piece.key.name].append(number)
        self.overflowed = 0
        """How many pieces were left out."""

    def push(self, names: Sequence[str], info: StepInfo, version: int) -> None:
        """Compress and send these gradients, which are of weights of ``version``."""
        servers = self._servers
        self.take_back_refused()
        flat = {name: _gradient(self._parameters[name]) for name in names}
        if self.recipe.clips_model:
            info = replace(info, gradient_norm=norm_of(flat.values()))
        numbers = [number for name in names for number in self._numbers[name]]
        self._refused.add_to(flat, [servers.pieces[number] for number in numbers])
        # What all workers must agree on, such as which steps are full ones, goes by version.
        counted = replace(info, step=version) if self.recipe.shares_momentum else info
        for owned in servers.by_owner(numbers):
            pieces = [servers.pieces[number] for number in owned]
            sent, overflowed = finite_push(self._role, pieces, flat, counted)
            if overflowed:
                _logger.warning("step %d: an inf or a nan is left out", info.step)
            self.overflowed += overflowed
            self._tally.push(pieces, sent)
            servers.push(info.step, version, info.learning_rate or 0.0, owned, sent)

    def report(self, step: int, *, every_seconds: float) -> None:
        """Tell the servers the residual, which would be lost with this worker, if that is due."""
        for session in self._servers.sessions:
            session.report(self._owed, step, every_seconds=every_seconds)

    def take_back_refused(self) -> None:
        refused = self._servers.updates.take_refused()
        if refused and self.recipe.shares_momentum:
            # The process before this one has pushed for that version already. To take back what
            # carries momentum would add that twice.
            _logger.warning("%d refused pieces of a gradient are dropped", len(refused))
        else:
            self._refused.take(refused)

    def state_dict(self) -> dict[str, Any]:
        """What is owed, once servers have acknowledged all pushes."""
        for session in self._servers.sessions:
            session.flush()
        self.take_back_refused()
        return {
            "push": by_parameter(self._servers.pieces, self._role.compressor.state_dict()),
            "returned": {name: kept.clone() for name, kept in self._refused.kept.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], *, steps: int) -> int:
        """Load what was owed after ``steps``. Returns how many steps servers know of, if more."""
        compressor, counted = self._role.compressor, self._servers.counted
        compressor.load_state_dict(by_piece(self._servers.pieces, state.get("push", {})))
        if counted > steps:
            self._drop(steps)
        else:
            self._refused.load(state.get("returned", {}))
        compressor.prepare(self._servers.pieces)
        return max(counted, steps)

    def _drop(self, steps: int) -> None:
        owed = self._owed()
        if owed:
            _logger.warning(
                "this worker pushed %d steps before it was lost, its checkpoint is of step %d: "
                "a residual of norm %g in there is out of date and is dropped",
                self._servers.counted,
                steps,
                owed,
            )
        self._role.compressor.load_state_dict({})

    def _owed(self) -> float:
        return math.sqrt(math.fsum(self._role.compressor.owed_squares().values()))


def _gradient(parameter: Tensor) -> Tensor:
    grad = parameter.grad
    return torch.zeros(parameter.numel()) if grad is None else flatten(grad)


class PushJob:
    """Work of ``Pushing`` for a pipeline, in one stage."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.stages = (work,)

    def finish(self) -> None:
        """Do nothing: no thread waits for a single job."""


def check_state(state: object) -> None:
    """Refuse what is no state of a client. ``attach`` compares what is in it with the network."""
    if not isinstance(state, Mapping):
        raise ConfigError(
            f"Client: load_state_dict: a state of type {type(state).__name__}, expected what "
            "state_dict() returned"
        )
    for part in ("push", "returned"):
        if not isinstance(state.get(part, {}), Mapping):
            raise ConfigError(
                f"Client: load_state_dict: {part!r} is of type {type(state[part]).__name__}, "
                "expected a dict by parameter"
            )
