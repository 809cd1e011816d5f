"""``Early``: apply versions while the next forward goes on; each module waits for its parameters.

No module may use weights that are not up to date. Its hook updates those that it owns; a gradient
of a parameter that no hook has updated since the last step is an error.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from thinwire.client.apply import Trained
from thinwire.client.readers import readers
from thinwire.errors import ConfigError
from thinwire.gradient.pieces import Piece, batches

_logger = logging.getLogger(__name__)

GROUP_NUMEL = 1 << 20
"""Elements of neighbours that are applied together: an optimizer step looks at all parameters, so
one for each small module would cost more than it hides."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbours, and the numbers of their pieces."""

    names: tuple[str, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A version that is not in all weights yet, and what must not change until it is."""

    version: int
    step: int
    left: list[_Group]
    settings: list[dict[str, object]]
    weights: dict[str, int]


class Early:
    """Applies a version group by group, when a forward needs it. Gradients stay what they were.

    The optimizer steps once for each group, with the gradients of that group only. So it must be
    one that looks at each parameter alone, as those of torch do. Forwards are of one thread.
    """

    def __init__(self, trained: Trained, net: nn.Module) -> None:
        self._trained = trained
        self._groups = _groups(trained)
        self._group_of = {name: group for group in self._groups for name in group.names}
        self._awaited: _Awaited | None = None
        self._busy = False
        self._expect_readers()
        self._handles = [*self._hook_modules(net), *self._hook_gradients(), *self._hook_states(net)]

    @property
    def is_settled(self) -> bool:
        return self._awaited is None

    def check_read(self) -> None:
        for name in self._unread:
            grad, seen = self._trained.parameters[name].grad, self._seen[name]
            if grad is not None and not seen.is_still(grad) and bool(grad.any()):
                raise _unread(name)

    def settle(self) -> None:
        if self._awaited is not None:
            self._apply(self._awaited, self._groups)
        if self._awaited is None:
            self._unread.clear()

    def advance(self, *, step: int) -> None:
        updates = self._trained.servers.updates
        before = updates.version
        while updates.has_next():
            self._apply(self._await_next(step), self._groups)
        if updates.version == before:
            self._await_next(step)
        self._expect_readers()

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._awaited is not None:
            done = len(self._groups) - len(self._awaited.left)
            _logger.warning(
                "version %d is in %d of %d groups of weights: go on from a checkpoint",
                self._awaited.version,
                done,
                len(self._groups),
            )

    def _expect_readers(self) -> None:
        """Weights are about to change: from now on they must be updated before they are used.

        Also where all of them are up to date, so that a network for which this cannot work is
        refused in its first step, and not when an update is late for the first time.
        """
        parameters = self._trained.parameters
        self._unread = set(parameters)
        self._seen = {name: _Seen(p.grad) for name, p in parameters.items()}

    def _await_next(self, step: int) -> _Awaited:
        trained = self._trained
        self._awaited = _Awaited(
            trained.servers.updates.version + 1,
            step,
            list(self._groups),
            _settings(trained.optimizer),
            {name: p._version for name, p in trained.parameters.items()},
        )
        return self._awaited

    def _read(self, names: Sequence[str]) -> None:
        """A module is about to use these."""
        if not torch.is_grad_enabled():
            # No gradient would show parameters that an evaluation uses in other ways.
            self.settle()
            return
        if self._awaited is not None:
            self._apply(self._awaited, [self._group_of[name] for name in names])
        if not self._busy:
            self._unread.difference_update(names)

    def _apply(self, awaited: _Awaited, wanted: Iterable[_Group]) -> None:
        parameters = self._trained.parameters.values()
        missing = [group for group in dict.fromkeys(wanted) if group in awaited.left]
        if not missing or self._busy:  # a hook of the optimizer may ask, in the middle of it
            return
        self._busy = True
        try:
            with _as_in_a_step(parameters), _gradients_aside(parameters):
                for group in missing:
                    self._apply_group(awaited, group)
        finally:
            self._busy = False
        if not awaited.left:
            self._awaited = None
            self._trained.servers.updates.applied_all(awaited.version)
            self._trained.step_scheduler()

    def _apply_group(self, awaited: _Awaited, group: _Group) -> None:
        trained = self._trained
        mean = {name: torch.empty(trained.parameters[name].numel()) for name in group.names}
        trained.decode(awaited.version, group.numbers, mean, step=awaited.step)
        _check_untouched(awaited, group, trained)
        for name, flat in mean.items():
            trained.give(name, flat)
        trained.step_optimizer(awaited.version)
        for name in group.names:
            trained.parameters[name].grad = None
        awaited.left.remove(group)

    def _hook_modules(self, net: nn.Module) -> Iterator[RemovableHandle]:
        """First of all hooks: old ones, such as weight_norm's, compute with parameters, too."""
        names = {id(p): name for name, p in self._trained.parameters.items()}
        for module, parameters in list(readers(net)):
            trained = [names[id(p)] for p in parameters if id(p) in names]
            if trained:
                yield module.register_forward_pre_hook(self._reader(trained), prepend=True)

    def _reader(self, names: Sequence[str]) -> Callable[[nn.Module, object], None]:
        # A function, because a copy of the network then shares it, and does not copy this worker.
        def read(module: nn.Module, args: object) -> None:
            self._read(names)

        outside: Callable[[nn.Module, object], None]
        outside = torch.compiler.disable(read)  # type: ignore[no-untyped-call]
        return outside

    def _hook_gradients(self) -> Iterator[RemovableHandle]:
        def check(name: str) -> Callable[[Tensor], None]:
            def arrived(parameter: Tensor) -> None:
                if name in self._unread:
                    raise _unread(name)

            return arrived

        for name, parameter in self._trained.parameters.items():
            yield parameter.register_post_accumulate_grad_hook(check(name))  # type: ignore[no-untyped-call]

    def _hook_states(self, net: nn.Module) -> Iterator[RemovableHandle]:
        """States that are saved or loaded are of whole versions."""

        def settle(*_: object) -> None:
            self.settle()

        for module in net.modules():
            yield module.register_state_dict_pre_hook(settle)  # type: ignore[no-untyped-call]
            yield module.register_load_state_dict_pre_hook(settle)  # type: ignore[no-untyped-call]
        yield self._trained.optimizer.register_state_dict_pre_hook(settle)
        yield self._trained.optimizer.register_load_state_dict_pre_hook(settle)


class _Seen:
    """A gradient as it was at some time, which it does not keep alive."""

    def __init__(self, grad: Tensor | None) -> None:
        self._grad = None if grad is None else weakref.ref(grad)
        self._version = -1 if grad is None else grad._version

    def is_still(self, grad: Tensor) -> bool:
        return self._grad is not None and self._grad() is grad and grad._version == self._version


def _groups(trained: Trained) -> list[_Group]:
    numbers: dict[str, list[int]] = {name: [] for name in trained.parameters}
    whole: dict[str, Piece] = {}
    for number, piece in enumerate(trained.servers.pieces):
        numbers[piece.key.name].append(number)
        whole[piece.key.name] = Piece.whole(piece.key)
    neighbours = batches(list(whole.values()), most_numel=GROUP_NUMEL)
    names = [tuple(piece.key.name for piece in group) for group in neighbours]
    return [_Group(group, tuple(n for name in group for n in numbers[name])) for group in names]


def _settings(optimizer: Optimizer) -> list[dict[str, object]]:
    return [
        {
            key: value.tolist() if isinstance(value, Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]


def _check_untouched(awaited: _Awaited, group: _Group, trained: Trained) -> None:
    """One version has one learning rate, and moves the weights that it was computed for."""
    if _settings(trained.optimizer) != awaited.settings:
        raise ConfigError(
            f"settings of the optimizer changed while version {awaited.version} was applied: give "
            "a scheduler to client.attach(..., scheduler=...), call client.settle() before you "
            "change them, or, if the optimizer does it by itself, use early_forward=False"
        )
    for name in group.names:
        if trained.parameters[name]._version != awaited.weights[name]:
            raise ConfigError(
                f"{name} was changed before version {awaited.version} was applied to it: call "
                "client.settle() before you change weights, or use early_forward=False"
            )


def _unread(name: str) -> ConfigError:
    return ConfigError(
        f"{name} has a gradient, but the module that owns it was not called since the last step, "
        "so that its weights may have been old ones: call client.settle() before the forward, "
        "attach a compiled network itself and not the one inside, or use early_forward=False"
    )


@contextmanager
def _as_in_a_step(parameters: Iterable[Tensor]) -> Iterator[None]:
    """A forward may be in modes that would change what an optimizer computes or keeps."""
    device = next(iter(parameters)).device.type
    with torch.inference_mode(mode=False), torch.autocast(device, enabled=False):
        yield


@contextmanager
def _gradients_aside(parameters: Iterable[Tensor]) -> Iterator[None]:
    """No parameter has a gradient in here. Afterwards all have those that they had."""
    before = [(parameter, parameter.grad) for parameter in parameters]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, grad in before:
            parameter.grad = grad
