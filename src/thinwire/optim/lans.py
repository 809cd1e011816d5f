"""``LANS`` (Zheng et al. 2020), and ``CLAN``: LANS that waits for compressed gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.checks import check_at_least, check_momentum, check_positive
from thinwire.optim.sgd import loss_of

_Tensors = list[Tensor] | tuple[Tensor, ...]

_CPU_BATCH_NUMEL = 1 << 20
_CPU_THREADED_NUMEL = 1 << 15


class LANS(Optimizer):
    """Move every parameter tensor by ``lr`` times its own norm, along two normalised directions.

    With g the gradient, divided by its norm + ``eps`` if ``normalize_grad``, m and v its moments
    as in Adam with bias correction, and D = sqrt(v) + eps:

        R = m / D + weight_decay * x,    C = g / D + weight_decay * x
        x <- x - lr * phi(||x||) * (beta1 * R / ||R|| + (1 - beta1) * C / ||C||)

    Norms are of one parameter tensor. ``trust_bounds`` = (lower, upper), both finite, clamps phi;
    without it phi is the norm itself. A direction is not rescaled where x or it is all zeros.
    Give biases and norms a group with ``weight_decay`` 0.

    float16 and bfloat16 parameters have float32 moments. Their step is computed in float32 and
    rounded once, when it is stored, so a change below half a unit in the last place is lost.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        normalize_grad: bool = True,
        trust_bounds: tuple[float, float] | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "normalize_grad": normalize_grad,
            "trust_bounds": trust_bounds,
        }
        _check(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; what is not set is as for all."""
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Do one step; ``closure`` recomputes the loss, as everywhere in torch."""
        loss = loss_of(closure)
        for group in self.param_groups:
            for parameters in _batches(group["params"]):
                self._step(parameters, group)
        return loss

    def _step(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        wide = _wide(parameters[0])
        x = [parameter.to(wide) for parameter in parameters]
        g = [parameter.grad.to(wide) for parameter in parameters if parameter.grad is not None]
        states = [self._state_of(parameter) for parameter in parameters]
        m, v, steps = ([state[key] for state in states] for key in _STATE)
        _lans(x, g, m, v, steps, group)
        if wide != parameters[0].dtype:
            torch._foreach_copy_(parameters, x)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter, dtype=_wide(parameter))
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=_wide(parameter))
            state["step"] = torch.zeros(())  # on the CPU, as in torch: reading it waits for no GPU
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned; moments keep the precision they were saved with."""
        super().load_state_dict(state_dict)
        # torch has just rounded the moments to the dtype of their parameters, so take them again.
        indices = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for index, parameter in zip(indices, parameters, strict=True):
            if parameter.dtype != _wide(parameter) and index in state_dict["state"]:
                for key in ("exp_avg", "exp_avg_sq"):
                    saved = state_dict["state"][index][key]
                    self.state[parameter][key] = saved.to(parameter.device, _wide(parameter))


_STATE = ("exp_avg", "exp_avg_sq", "step")


def _check(settings: dict[str, Any]) -> None:
    for field in ("lr", "weight_decay"):
        check_at_least(settings[field], 0.0, owner="LANS", field=field)
    for i, beta in enumerate(settings["betas"]):
        check_momentum(beta, owner="LANS", field=f"betas[{i}]")
    check_positive(settings["eps"], owner="LANS", field="eps")
    if settings["trust_bounds"] is not None:
        lower, upper = settings["trust_bounds"]
        check_at_least(lower, 0.0, owner="LANS", field="trust_bounds[0]")
        check_positive(upper, owner="LANS", field="trust_bounds[1]")
        check_at_least(upper, lower, owner="LANS", field="trust_bounds[1]")


def _batches(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters that have a gradient, those of one device and dtype together.

    On a CPU a foreach operation goes through memory once per call, so a batch is only large enough
    to hide the calls: its tensors stay in the cache, and three temporaries of its size are all that
    a step needs.
    """
    open_batches: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], int]] = {}
    for parameter in parameters:
        if parameter.grad is None:
            continue
        kind = parameter.device, parameter.dtype
        batch, numel = open_batches.pop(kind, ([], 0))
        batch.append(parameter)
        numel += parameter.numel()
        if numel >= _CPU_BATCH_NUMEL and parameter.device.type == "cpu":
            yield batch
        else:
            open_batches[kind] = batch, numel
    for batch, _ in open_batches.values():
        yield batch


def _wide(parameter: Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


def _lans(
    x: list[Tensor],
    g: _Tensors,
    m: list[Tensor],
    v: list[Tensor],
    steps: list[Tensor],
    settings: dict[str, Any],
) -> None:
    """Change ``x``, ``m``, ``v`` and ``steps`` by one step, and leave ``g`` alone.

    Bias corrections and epsilon go into one factor per tensor, to save passes over memory: with
    root = sqrt(1 - beta2^t) and d = sqrt(v) + eps * root, R is root / (1 - beta1^t) times
    m / d + ... x, and C is root times g / d + ... x. The factors matter only where the ratio is 1.
    """
    (beta1, beta2), eps = settings["betas"], settings["eps"]
    torch._foreach_add_(steps, 1.0)
    t = torch.stack(steps).double()
    root = (1.0 - beta2**t).sqrt()
    factors = (root / (1.0 - beta1**t)).to(x[0]), root.to(x[0])

    if settings["normalize_grad"]:
        # An all-zero gradient stays one, so it needs no case of its own.
        g = torch._foreach_mul(g, (_norms(g) + eps).reciprocal_().unbind())
    torch._foreach_lerp_(m, g, 1.0 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, g, g, 1.0 - beta2)
    d = torch._foreach_sqrt(v)
    torch._foreach_add_(d, (eps * root).to(x[0]).unbind())
    r = torch._foreach_div(m, d)
    if settings["normalize_grad"]:
        torch._foreach_div_(g, d)
    else:
        g = torch._foreach_div(g, d)
    _move(x, (r, g), factors, settings)


def _norms(tensors: _Tensors) -> Tensor:
    if tensors[0].device.type == "cpu":
        tensors = [_rows(tensor) for tensor in tensors]
    return torch.stack(torch._foreach_norm(tensors))


def _rows(x: Tensor) -> Tensor:
    """The norms of the rows of a large tensor, which together have the norm of all of it.

    torch takes the norm of a whole CPU tensor in one thread, and for a million float32 elements
    it is 1e-5 off. Row by row it is twice as fast, 1e-7 off, and equal for any number of threads,
    which workers need that must all take the same step.
    """
    if x.ndim < 2 or x.numel() < _CPU_THREADED_NUMEL:
        return x
    norms: Tensor = torch.linalg.vector_norm(x, dim=tuple(range(1, x.ndim)))
    return norms


def _move(
    x: list[Tensor],
    directions: tuple[_Tensors, _Tensors],
    factors: tuple[Tensor, Tensor],
    settings: dict[str, Any],
) -> None:
    """Add the decay to both ``directions``, which are divided by ``factors``, and go along them."""
    if settings["weight_decay"]:
        for u, factor in zip(directions, factors, strict=True):
            torch._foreach_addcmul_(u, x, (settings["weight_decay"] / factor).unbind())
    norm_x = _norms(x)
    phi = norm_x.clamp(*settings["trust_bounds"]) if settings["trust_bounds"] else norm_x
    gains = []
    for u, factor in zip(directions, factors, strict=True):
        norm_u = _norms(u)
        gains.append(torch.where((norm_x > 0) & (norm_u > 0), phi / norm_u, factor))
    beta1 = settings["betas"][0]
    for u, gain, share in zip(directions, gains, (beta1, 1.0 - beta1), strict=True):
        torch._foreach_addcmul_(x, u, (gain * (-settings["lr"] * share)).unbind())


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
