"""``OptimizerSteps``: whether an optimizer moved the weights between two exchanges.

Exchanges pair up whatever ranks send next. If one rank calls backward once more than the others,
all go on, with gradients of different batches, and only the end of training would show it. What
differs at once is this, and one bit of it is enough: ranks may have several optimizers, or each a
part of one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from thinwire.errors import ConfigError
from thinwire.gradient.steps import Updated


class OptimizerSteps:
    """Watches all optimizers of this process, for those that have some of ``parameters``."""

    def __init__(
        self, parameters: Iterable[int], check: Callable[[Optimizer], None] | None = None
    ) -> None:
        """``parameters`` are the ids of those of one network. ``check`` is called once, with the
        first optimizer of them that steps."""
        self._parameters = frozenset(parameters)
        self._check = check
        self._seen = Updated.UNKNOWN
        hook = partial(_stepped, weakref.WeakMethod(self._note))
        weakref.finalize(self, register_optimizer_step_post_hook(hook).remove)

    def take(self) -> Updated:
        """What happened since the last call; one call at the beginning of every exchange."""
        seen, self._seen = self._seen, Updated.NO
        return seen

    def forget(self) -> None:
        """Not known for the next exchange, because this one is not this rank's own."""
        self._seen = Updated.UNKNOWN

    def _note(self, optimizer: Optimizer) -> None:
        if self._check is not None and self._has_some_of(optimizer):
            check, self._check = self._check, None
            check(optimizer)
        if self._seen is Updated.NO and self._has_some_of(optimizer):
            self._seen = Updated.YES

    def _has_some_of(self, optimizer: Optimizer) -> bool:
        groups = optimizer.param_groups
        return any(id(p) in self._parameters for group in groups for p in group["params"])


def _stepped(note: weakref.WeakMethod[Any], optimizer: Optimizer, *rest: object) -> None:
    method = note()
    if method is not None:
        method(optimizer)


def check_alike(seen: dict[int, int], *, step: int) -> None:
    """Refuse if of two ranks one has updated its weights and the other has not.

    ``seen`` is what each of them reports, by global rank.
    """
    if set(seen.values()) != {Updated.NO, Updated.YES}:
        return
    (behind,) = (rank for rank, updated in seen.items() if updated == Updated.NO)
    (ahead,) = (rank for rank, updated in seen.items() if updated == Updated.YES)
    raise ConfigError(
        f"step {step}: rank {behind} has made no optimizer step since its last exchange, but rank "
        f"{ahead} has: they would average gradients of different batches. Call backward and the "
        "optimizer's step as often on all ranks: put all batches of a step but the last into "
        "no_sync(), and give all ranks as many batches, or use torch's Join with "
        "DistributedDataParallel"
    )
