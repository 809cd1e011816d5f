"""``GradientMemory``: gradients of a plain module are encoded, and cleared, where they are.

Autograd gives a parameter memory that it has just made, but sometimes the same to another one, or
it still reads there itself. What was there before backward is the user's, and must stay in place.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

_UNSHARED = 2
"""References to memory that is not shared: the gradient, and the object that asks for them."""


class GradientMemory:
    """Gives every gradient memory that is its own, where it has none."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._users_in_hooks = users_in_hooks()
        self._kept: set[str] = set()
        self._left: dict[str, weakref.ref[Tensor]] = {}
        self.remember()

    def remember(self) -> None:
        """Gradients that are here now, and may be here when the next step begins."""
        self._left = {name: weakref.ref(grad) for name, grad in self._present().items()}

    def begin(self, first: str) -> None:
        """Backward has made one gradient, ``first``. All others that are here are older."""
        older = self._present()
        grad = older.pop(first, None)
        if grad is not None and self._is_older(first, grad, older):
            older[first] = grad
        self._kept = set(older)
        self._separate(older)

    def own(self, name: str, *, in_hook: bool) -> Tensor:
        """The gradient of a parameter, contiguous and in memory of its own."""
        parameter = self._parameters[name]
        if parameter.grad is None:  # not used in this step, but something may be owed for it
            parameter.grad = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        elif not parameter.grad.is_contiguous():
            parameter.grad = parameter.grad.contiguous()
        elif name not in self._kept:
            alone = self._users_in_hooks if in_hook else _UNSHARED
            if _users(parameter.grad) > alone:
                parameter.grad = parameter.grad.clone()
        return parameter.grad

    def _present(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self._parameters.items() if p.grad is not None}

    def _is_older(self, name: str, grad: Tensor, older: Mapping[str, Tensor]) -> bool:
        """Whether backward only added to this gradient: it was left here, or has neighbours."""
        left = self._left.get(name)
        if left is not None and left() is grad:
            return True
        place = grad.untyped_storage().data_ptr()
        return any(other.untyped_storage().data_ptr() == place for other in older.values())

    def _separate(self, older: Mapping[str, Tensor]) -> None:
        """Torch leaves what autograd has made for two where it is, until both are used again."""
        end = 0
        for start, name in sorted((grad.data_ptr(), name) for name, grad in older.items()):
            if start < end:
                self._parameters[name].grad = older[name].clone()
            end = max(end, start + older[name].nbytes)


def _users(gradient: Tensor) -> int:
    return torch._C._storage_Use_Count(gradient.untyped_storage()._cdata)


@cache
def users_in_hooks() -> int:
    """References to a new gradient that is not shared, in a hook: some versions of torch hold one
    more there."""
    counts: list[int] = []

    def count(leaf: Tensor) -> None:
        if leaf.grad is not None:
            counts.append(_users(leaf.grad))

    with torch.enable_grad():
        leaf = torch.zeros(1, requires_grad=True)
        leaf.register_post_accumulate_grad_hook(count)  # type: ignore[no-untyped-call]
        (leaf * 2).sum().backward()  # type: ignore[no-untyped-call]
    return counts[0]
