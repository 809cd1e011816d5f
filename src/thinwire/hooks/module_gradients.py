"""``ModuleCompression``: encode gradients of a plain module where backward has made them.

They are not copied first, and the mean goes where they were. Everything up to the end of backward
happens in its own thread.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.exchange.base import UnitJob
from thinwire.exchange.inline import Inline
from thinwire.exchange.roles import norm_of
from thinwire.hooks.handle import Compression
from thinwire.hooks.module_groups import Group, neighbours
from thinwire.hooks.rank_handle import STAGES
from thinwire.hooks.rendezvous import Membership
from thinwire.recipe import Recipe

SMALL_NUMEL = 1 << 16
"""Smaller gradients wait for the end of backward, and travel together: to be called for each takes
longer than to encode it."""

RUN_BACKWARD = "_engine_run_backward"
"""The function of torch that every backward goes through."""


class GradientPlaces(Protocol):
    """Where gradients are encoded, and where their mean is written."""

    def begin(self, first: str) -> None:
        """Backward has made one gradient, ``first``."""

    def own(self, name: str, *, in_hook: bool) -> Tensor:
        """The gradient of a parameter: contiguous float32 in memory of its own, on the CPU."""

    def remember(self) -> None:
        """All means are where ``own`` said."""


class ModuleCompression(Compression):
    """What ``compress_module`` and ``compress_fsdp`` return: state, statistics, ``no_sync``, and a
    way to stop."""

    def __init__(
        self,
        net: nn.Module,
        parameters: Mapping[str, Tensor],
        places: GradientPlaces,
        membership: Membership,
        recipe: Recipe,
        *,
        optimizer: Optimizer | None,
        force: bool,
        deadline_seconds: float,
    ) -> None:
        """``parameters`` are to be exchanged, or frozen. Use ``compress_module`` instead."""
        trained = {name: p for name, p in parameters.items() if p.requires_grad}
        self._inline = Inline(STAGES, on_error=self._teller())
        super().__init__(
            membership,
            self._inline,
            parameters=map(id, trained.values()),
            recipe=recipe,
            optimizer=optimizer,
            force=force,
            deadline_seconds=deadline_seconds,
        )
        self._parameters = trained
        self._frozen = {name: p for name, p in parameters.items() if name not in trained}
        self._whole_gradient_first = recipe.clips_model
        small = {name for name in trained if self._pieces[name][0].key.numel < SMALL_NUMEL}
        self._neighbours = self._in_neighbourhoods(small)
        self._paused = False
        self._arrived: set[str] = set()
        self._places = places
        self._begun: int | None = None
        self._groups: list[Group] = []
        self._jobs: list[UnitJob] = []
        self._place_of, self._submitted = dict[str, int](), 0
        for name, p in trained.items():
            Arrival(self, name, small=name in small).watch(p)
        # Hooks know this object only weakly, or nothing of it could ever be freed. It must live as
        # long as the network, also if the script drops the handle: else ranks would train apart.
        self._owner = weakref.finalize(net, self.close)
        self._owner.atexit = False

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        super().close()
        self._forget_step()

    def replaced(self) -> None:
        """Another one has taken the network over: it need not keep this one alive any more."""
        self._owner.detach()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward in here only adds to the gradients: for all but the last of several batches."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def arrived(self, name: str, *, small: bool) -> None:
        """A gradient is complete; what hooks of parameters call. The first one begins a step."""
        if self._paused:
            return
        self._check_usable()
        try:
            self._note(name)
            if not small:
                self._take(name, in_hook=True)
                self._encode(name)
                self._submit()
        except BaseException as error:
            self._inline.fail(error)  # which tells the other ranks
            raise

    def _note(self, name: str) -> None:
        if name in self._arrived:
            raise ConfigError(
                f"{name} has a second gradient in step {self._current.info.step}: call backward "
                "once for each step (others within no_sync()); after one that failed, close() this "
                "and compress again on all ranks"
            )
        if not self._arrived:
            self._open_step(first=name)
        self._arrived.add(name)

    def _in_neighbourhoods(self, small: Container[str]) -> list[list[str]]:
        """Gradients come from the last of a network to the first; small ones wait for all."""
        backwards = list(reversed(self._parameters))
        order = [n for n in backwards if n not in small] + [n for n in backwards if n in small]
        return neighbours({name: self._usual_nbytes(name) for name in order}, small)

    def _usual_nbytes(self, name: str) -> int:
        worker = self._exchange.worker
        if worker is None:
            raise ConfigError("compress_module: this exchange compresses nothing here")
        return sum(worker.compressor.usual_nbytes(piece) for piece in self._pieces[name])

    def _open_step(self, *, first: str) -> None:
        """When the gradient of ``first`` has come."""
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise ConfigError(
                    f"{name} is trained now, but was frozen when compression began: compress "
                    "before freezing"
                )
        _check_outermost()
        self._begin_step()
        self._begun = self._current.info.step
        self._forget_step()
        self._submitted = 0
        self._places.begin(first)
        for names in self._neighbours:
            trained = [name for name in names if self._parameters[name].requires_grad]
            if trained:
                self._place_of.update(dict.fromkeys(trained, len(self._groups)))
                self._groups.append(Group({name: self._pieces[name] for name in trained}))
        self._jobs = [
            self._job(group, group.pieces, completes_buffer=True, last=group is self._groups[-1])
            for group in self._groups
        ]

    def _take(self, name: str, *, in_hook: bool) -> None:
        """Let a gradient into its group: a view of it, into which the mean will be written."""
        gradient = self._places.own(name, in_hook=in_hook)
        self._groups[self._place_of[name]].flat[name] = gradient.detach().view(-1)

    def _encode(self, name: str) -> None:
        """Compress a gradient while the caches have it: its group may be sent much later."""
        if not self._whole_gradient_first:
            job, pieces = self._jobs[self._place_of[name]], self._pieces[name]
            self._inline.begin(lambda: job.encode(pieces), name)

    def _submit(self) -> None:
        """Send groups, in the order that is the same on all ranks, as far as they are full."""
        if self._whole_gradient_first and self._current.info.gradient_norm is None:
            return
        while self._submitted < len(self._groups) and self._groups[self._submitted].is_full:
            self._submitted += 1
            self._inline.submit(self._jobs[self._submitted - 1])

    def _forget_step(self) -> None:
        """So that nothing keeps its gradients alive."""
        self._groups, self._jobs = [], []
        self._place_of.clear()

    def _end_of_backward(self) -> None:
        try:
            self._send_rest()
        except BaseException as error:
            self._inline.fail(error)  # which tells the other ranks
            raise
        self._forget_step()
        self._arrived.clear()
        self.wait()
        self._begun = None
        self._places.remember()
        self._look_at_gradients()

    def _norm(self, gradients: Iterable[Tensor]) -> float:
        """Of all gradients of the network, of which these are this rank's."""
        return norm_of(gradients)

    def _send_rest(self) -> None:
        for group in self._groups:
            for name in group.names:
                if name not in group.flat:
                    self._take(name, in_hook=False)
        if self._whole_gradient_first:
            norm = self._norm(x for group in self._groups for x in group.flat.values())
            self._current.info = replace(self._current.info, gradient_norm=norm)
        self._submit()


class Arrival:
    """The hook of a parameter, which does not keep its compression alive."""

    def __init__(self, compression: ModuleCompression, name: str, *, small: bool) -> None:
        self._compression = weakref.ref(compression)
        self._name, self._small = name, small

    def watch(self, parameter: Tensor) -> None:
        self._handle = parameter.register_post_accumulate_grad_hook(self)  # type: ignore[no-untyped-call]

    def __call__(self, parameter: Tensor) -> None:
        compression = self._compression()
        if compression is not None:
            compression.arrived(self._name, small=self._small)

    @classmethod
    def make_way(cls, parameter: Tensor) -> None:
        """Remove what a closed compression has left; refuse one that is in use."""
        hooks: Mapping[int, object] = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        for hook in [hook for hook in hooks.values() if isinstance(hook, cls)]:
            compression = hook._compression()
            if compression is not None and not compression.is_closed:
                raise ConfigError(
                    "this network is compressed already: that works once, or again after close()"
                )
            hook._handle.remove()
            if compression is not None:
                compression.replaced()


def _check_outermost() -> None:
    """Refuse a backward within another one: a step would end with the inner one."""
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        depth += frame.f_code.co_name == RUN_BACKWARD
        frame = frame.f_back
    if depth > 1:
        raise ConfigError(
            "the first gradient of a step comes from a backward within another one: use "
            "checkpoint(..., use_reentrant=False), or DistributedDataParallel and compress_ddp"
        )
