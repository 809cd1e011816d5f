"""Compression of a plain module on processors: gradients are encoded where backward has made them.

They are not copied first, and the mean goes where they were. Everything up to the end of backward
happens in its own thread.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from thinwire.errors import ConfigError
from thinwire.gradient.pieces import Piece
from thinwire.worker.compression import STAGES, Compression, CompressionState
from thinwire.worker.exchange import Unit
from thinwire.worker.gradient_memory import GradientMemory
from thinwire.worker.inline import Inline
from thinwire.worker.sides import Round, norm_of
from thinwire.worker.team import Team
from thinwire.worker.unit_job import UnitJob

FIRST_NBYTES = 1 << 16
"""Of payloads: the first group is sent when it has so many, so that the link is soon in use."""

GROUP_NBYTES = 1 << 20
"""Each group waits for twice as many bytes as the one before, because the link is in use meanwhile
and a message takes as long as many bytes, but for no more than these."""

SMALL_NUMEL = 1 << 16
"""Smaller gradients wait for the end of backward, and travel together: to be called for each takes
longer than to encode it."""

RUN_BACKWARD = "_engine_run_backward"
"""The function of torch that every backward goes through."""


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
        net: nn.Module,
        parameters: dict[str, Tensor],
        frozen: Mapping[str, Tensor],
        team: Team,
        *,
        optimizer: Optimizer | None,
        whole_gradient_first: bool,
        deadline_seconds: float,
    ) -> None:
        """``frozen`` are parameters that are not trained. Use ``compress_module`` instead."""
        self._inline = Inline(STAGES, on_error=self._teller())
        super().__init__(team, self._inline, optimizer=optimizer, deadline_seconds=deadline_seconds)
        self._parameters, self._frozen = parameters, frozen
        self._whole_gradient_first = whole_gradient_first
        # Gradients come from the last of a network to the first, about; small ones wait for all.
        small = {name for name, p in parameters.items() if p.numel() < SMALL_NUMEL}
        backwards = list(reversed(parameters))
        order = [n for n in backwards if n not in small] + [n for n in backwards if n in small]
        self._neighbours = neighbours({name: self._usual_nbytes(name) for name in order}, small)
        self._paused = False
        self._arrived: set[str] = set()
        self._memory = GradientMemory(parameters)
        self._begun: int | None = None
        self._groups: list[Group] = []
        self._jobs: list[UnitJob] = []
        self._place_of: dict[str, int] = {}
        self._submitted = 0
        for name, p in parameters.items():
            Arrival(self, name, small=name in small).watch(p)
        # Hooks know this object only weakly, or nothing of it could ever be freed. It must live as
        # long as the network, also if nobody keeps the handle: else ranks would train apart.
        self._owner = weakref.finalize(net, self.close)
        self._owner.atexit = False

    @property
    def is_closed(self) -> bool:
        return self._closed

    def state_dict(self) -> CompressionState:
        if self._begun == self.steps:  # it will never end, but some of its gradients are in there
            self._exchange.undo(self.steps)
        return super().state_dict()

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
            self._inline.fail(error)  # so that others hear of it
            raise

    def _note(self, name: str) -> None:
        if name in self._arrived:
            raise ConfigError(
                f"{name} has a second gradient in step {self._step.number}: call backward once for "
                "each step (others within no_sync()); after one that failed, close() this and call "
                "compress_module again on all ranks"
            )
        if not self._arrived:
            self._open_step(first=name)
        self._arrived.add(name)

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
                    f"{name} is trained now, but was frozen when compress_module was called: call "
                    "that before freezing"
                )
        _check_outermost()
        self._begin_step()
        self._begun = self._step.number
        self._forget_step()
        self._submitted = 0
        self._memory.begin(first)
        for names in self._neighbours:
            trained = [name for name in names if self._parameters[name].requires_grad]
            if trained:
                self._place_of.update(dict.fromkeys(trained, len(self._groups)))
                self._groups.append(Group({name: self._pieces[name] for name in trained}))
        self._jobs = [
            self._job(group, group.pieces, completes_home=True, last=group is self._groups[-1])
            for group in self._groups
        ]

    def _take(self, name: str, *, in_hook: bool) -> None:
        """Let a gradient into its group: a view of it, into which the mean will be written."""
        gradient = self._memory.own(name, in_hook=in_hook)
        self._groups[self._place_of[name]].flat[name] = gradient.detach().view(-1)

    def _encode(self, name: str) -> None:
        """Compress a gradient while the caches have it: its group may be sent much later."""
        if not self._whole_gradient_first:
            job, pieces = self._jobs[self._place_of[name]], self._pieces[name]
            self._inline.begin(lambda: job.encode(pieces), name)

    def _submit(self) -> None:
        """Send groups, in the order that is the same on all ranks, as far as they are full."""
        if self._whole_gradient_first and self._step.norm is None:
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
            self._inline.fail(error)  # so that others hear of it
            raise
        self._forget_step()
        self._arrived.clear()
        self.wait()
        self._begun = None
        self._memory.remember()

    def _send_rest(self) -> None:
        for group in self._groups:
            for name in group.names:
                if name not in group.flat:
                    self._take(name, in_hook=False)
        if self._whole_gradient_first:
            self._step.norm = norm_of(x for group in self._groups for x in group.flat.values())
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
                    "this network is compressed already: compress_module works once, or again "
                    "after close()"
                )
            hook._handle.remove()
            if compression is not None:
                compression.replaced()


def neighbours(nbytes: Mapping[str, int], small: Container[str] = ()) -> list[list[str]]:
    """Parameters that travel together, in this order. ``nbytes`` are of their payloads, about.

    Those that are ``small`` come last, when backward has ended: to wait for them costs nothing.
    """
    found: list[list[str]] = []
    enough, total = 0, 0
    for name in nbytes:
        if total >= (GROUP_NBYTES if found and name in small else enough):
            found.append([])
            enough, total = min(max(2 * total, FIRST_NBYTES), GROUP_NBYTES), 0
        found[-1].append(name)
        total += nbytes[name]
    return found


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
