"""Compression of a plain module on processors: gradients are encoded where backward has made them.

They are never copied, and the mean goes where they were. Everything happens in the thread that
calls backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.gradient.pieces import Piece
from thinwire.worker.compression import STAGES, Compression
from thinwire.worker.exchange import Unit
from thinwire.worker.inline import Inline
from thinwire.worker.sides import Round, norm_of
from thinwire.worker.team import Team

FIRST_NBYTES = 1 << 15
"""Of the payloads that travel together first: few, so that the link is soon in use."""

GROUP_NBYTES = 1 << 20
"""Of others, at most. Each group is twice the one before, because the link is in use meanwhile, and
a message takes as long as many bytes."""

SMALL_NUMEL = 1 << 16
"""Smaller gradients wait for the end of backward, and travel together: to be called for each takes
longer than to encode it."""


class Group:
    """The home of gradients that travel together, in one step. They come one by one."""

    def __init__(self, pieces: Mapping[str, Sequence[Piece]]) -> None:
        """``pieces`` are those of all its gradients, by name."""
        self.names = tuple(pieces)
        self.pieces = [piece for cut in pieces.values() for piece in cut]
        self.flat: dict[str, Tensor] = {}

    @property
    def is_full(self) -> bool:
        return len(self.flat) == len(self.names)

    def unit(self, pieces: Sequence[Piece], round_: Round) -> Unit:
        return Unit(pieces, self.flat, round_)

    def store(self) -> bool:
        """The mean is where the gradients were."""
        return True

    def complete(self) -> None:
        """Nobody waits for single gradients."""


class ModuleCompression(Compression):
    """What ``compress_module`` returns: state, statistics, ``no_sync``, and a way to stop."""

    def __init__(
        self,
        parameters: dict[str, Tensor],
        frozen: Mapping[str, Tensor],
        team: Team,
        *,
        optimizer: Optimizer | None,
        whole_gradient_first: bool,
        deadline_seconds: float,
    ) -> None:
        """``frozen`` are parameters that are not trained. Use ``compress_module`` instead."""
        inline = Inline(STAGES, on_error=self._teller())
        super().__init__(team, inline, optimizer=optimizer, deadline_seconds=deadline_seconds)
        self._parameters, self._frozen = parameters, frozen
        self._whole_gradient_first = whole_gradient_first
        # Gradients come from the last of a network to the first, about; small ones wait for all.
        small = {name for name, p in parameters.items() if p.numel() < SMALL_NUMEL}
        backwards = list(reversed(parameters))
        order = [n for n in backwards if n not in small] + [n for n in backwards if n in small]
        self._neighbours = neighbours({name: self._usual_nbytes(name) for name in order})
        self._paused = False
        self._arrived: set[str] = set()
        self._groups: list[Group] = []
        self._group_of: dict[str, Group] = {}
        self._submitted = 0
        for name, p in parameters.items():
            hook = self._hook(name, small=name in small)
            p.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward in here only adds to the gradients: for all but the last of several batches."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def _hook(self, name: str, *, small: bool) -> Callable[[Tensor], None]:
        def arrived(parameter: Tensor) -> None:
            if self._paused:
                return
            self._note(name)
            if not small:
                self._group_of[name].flat[name] = _flat(parameter)
                self._submit()

        return arrived

    def _note(self, name: str) -> None:
        """A gradient is complete. The first one begins a step."""
        self._pipeline.check()
        if name in self._arrived:
            raise ConfigError(
                f"{name} has a second gradient in step {self._step.number}: call backward once for "
                "each step (others within no_sync()); after one that failed, make the compression "
                "anew, because other ranks may have heard of it"
            )
        if not self._arrived:
            self._open_step()
        self._arrived.add(name)

    def _usual_nbytes(self, name: str) -> int:
        worker = self._exchange.worker
        if worker is None:
            raise ConfigError("compress_module: this exchange compresses nothing here")
        return sum(worker.compressor.usual_nbytes(piece) for piece in self._pieces[name])

    def _open_step(self) -> None:
        self._check_usable()
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise ConfigError(
                    f"{name} is trained now, but was frozen when compress_module was called: call "
                    "that before freezing"
                )
        self._begin_step()
        self._submitted = 0
        for names in self._neighbours:
            trained = [name for name in names if self._parameters[name].requires_grad]
            if trained:
                group = Group({name: self._pieces[name] for name in trained})
                self._groups.append(group)
                self._group_of.update(dict.fromkeys(trained, group))

    def _submit(self) -> None:
        """Send groups, in the order that is the same on all ranks, as far as they are full."""
        if self._whole_gradient_first and self._step.norm is None:
            return
        while self._submitted < len(self._groups) and self._groups[self._submitted].is_full:
            group = self._groups[self._submitted]
            self._submitted += 1
            last = self._submitted == len(self._groups)
            self._pipeline.submit(self._job(group, group.pieces, completes_home=True, last=last))

    def _end_of_backward(self) -> None:
        for group in self._groups:
            # Small ones, and those that this step has not used: something may be owed for them.
            for name in group.names:
                if name not in group.flat:
                    group.flat[name] = _flat(self._parameters[name])
        if self._whole_gradient_first:
            self._step.norm = norm_of(x for group in self._groups for x in group.flat.values())
        self._submit()
        self._groups, self._group_of = [], {}
        self._arrived.clear()
        self.wait()


def neighbours(nbytes: Mapping[str, int]) -> list[list[str]]:
    """Parameters that travel together, in this order. ``nbytes`` are of their payloads, about."""
    found: list[list[str]] = []
    enough, total = 0, 0
    for name in nbytes:
        if total >= enough:
            found.append([])
            enough, total = min(max(2 * total, FIRST_NBYTES), GROUP_NBYTES), 0
        found[-1].append(name)
        total += nbytes[name]
    return found


def _flat(parameter: Tensor) -> Tensor:
    """A view of the gradient, into which the mean will be written."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
    elif not parameter.grad.is_contiguous():
        parameter.grad = parameter.grad.contiguous()
    return parameter.grad.detach().view(-1)
