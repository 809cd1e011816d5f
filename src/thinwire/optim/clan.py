"""CLAN: LANS on gradients that travelled compressed (Zhong et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from torch import Tensor

from thinwire.optim.lans import LANS


class Exchanging(Protocol):
    """What exchanges gradients: the handle of ``compress_ddp``, or a parameter server's client."""

    def wait(self) -> None:
        """Return once every gradient of this step is there; raise what went wrong."""


class CLAN(LANS):
    """LANS that waits for ``exchange`` before it steps; all other settings are those of LANS.

    Every worker computes the same step from the same gradients, so moments need no communication.
    Use it with the recipe ``tw.clan(codec)``. With nothing compressed it is LANS.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        *,
        exchange: Exchanging,
        **settings: Any,
    ) -> None:
        super().__init__(params, lr, **settings)
        self._exchange = exchange

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Wait for the gradients, then do one step."""
        self._exchange.wait()
        return super().step(closure)
