"""``share_momentum``: pushes carry the momentum of an optimizer, whose step applies the answer.

The momentum stays where the optimizer keeps it, so that its checkpoints are those of dense training
and go from one to the other. The optimizer stays the user's own, too. Before each of its steps:

* SGD: the answer is the new momentum. It becomes the gradient that leads to it, and the optimizer
  does all else: weight decay, Nesterov's look ahead, its buffer.
* Adam: while all gradients come in full nothing, its steps are ordinary ones. Later the weights
  move here (``adam.py``), and the optimizer does not see the gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.codec.policy import row_block
from thinwire.errors import ConfigError
from thinwire.feedback.momentum import (
    AdamMomentum,
    SGDMomentum,
    SharedMomentum,
    shared_momentum,
)
from thinwire.gradient.network import local_part
from thinwire.gradient.pieces import Key, Piece, flatten
from thinwire.gradient.steps import Carried
from thinwire.optim.adam import AdamSettings, AdamState
from thinwire.optim.sgd import SGD, StepArguments, after_closure
from thinwire.optim.sign_runs import SignRuns
from thinwire.recipe import Recipe

_ATTRIBUTE = "_thinwire_momentum"
"""Where an optimizer has its ``MomentumSource``: it may be attached again."""


class MomentumSource(ABC):
    """The momentum of one optimizer, by the names of parameters."""

    def __init__(
        self, stage: SharedMomentum, optimizer: Optimizer, parameters: Mapping[str, Tensor]
    ) -> None:
        self._stage, self._optimizer = stage, optimizer
        self._parameters = parameters
        self._keys = {name: Key(name, tuple(local_part(p).shape)) for name, p in parameters.items()}
        self._groups: dict[int, dict[str, Any]] = {}
        self._grouped: tuple[list[dict[str, Any]], int] = [], 0
        self._flat: dict[str, Tensor] = {}
        self._step: int | None = None
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        self._hidden: list[tuple[Tensor, Tensor]] = []

    def detach(self) -> None:
        """Leave the optimizer alone from now on."""
        for handle in self._handles:
            handle.remove()

    def expect(self, step: int) -> None:
        """The gradients that the optimizer sees next are answers to pushes of this step."""
        self._step = step

    def carried(self, piece: Piece, *, step: int) -> Carried | None:
        """What a push of this piece carries; None if it is its gradient alone."""
        name = piece.key.name
        parameter = self._parameters[name]
        group = self._group(parameter)
        if group is None or not self._stage.travels(piece.key, step=step):
            return None
        momentum, factor, gain = self._momentum(parameter, group)
        if momentum is None:
            return None if gain == 1.0 else Carried(None, factor, gain)
        if name not in self._flat:  # on an accelerator it is copied, once for all pieces
            self._flat[name] = flatten(momentum)
        flat = self._flat[name][piece.start : piece.stop]
        return Carried(flat, factor, gain, self._sign_runs(piece, momentum))

    def _group(self, parameter: Tensor) -> dict[str, Any] | None:
        """The group of a parameter: to load a checkpoint makes new ones."""
        groups = self._optimizer.param_groups
        if self._grouped[0] is not groups or self._grouped[1] != len(groups):
            self._groups = {id(p): group for group in groups for p in group["params"]}
            self._grouped = groups, len(groups)
            self._flat.clear()
        return self._groups.get(id(parameter))

    @abstractmethod
    def _momentum(
        self, parameter: Tensor, group: dict[str, Any]
    ) -> tuple[Tensor | None, float, float]:
        """The momentum that the optimizer has now of this rank's part, its factor, and the gain of
        gradients."""

    def _sign_runs(self, piece: Piece, momentum: Tensor) -> memoryview | None:
        """The sign runs of a piece of ``momentum``, if they are known."""
        return None

    @abstractmethod
    def _apply(self, key: Key, parameter: Tensor, grad: Tensor, step: int) -> bool:
        """Use the answer in ``grad``, of this rank's part. False if the optimizer must not see
        it."""

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> StepArguments | None:
        return after_closure(args, kwargs, self._apply_all)

    @torch.no_grad()
    def _apply_all(self) -> None:
        if self._step is None:
            return
        if getattr(self._optimizer, "grad_scale", None) is not None:
            raise ConfigError(
                "a fused optimizer leaves gradients scaled until its own step, which this recipe "
                "does for it: use fused=False with a GradScaler"
            )
        for name, parameter in self._parameters.items():
            grad = parameter.grad
            if grad is None or self._group(parameter) is None:
                continue
            if not self._apply(self._keys[name], parameter, local_part(grad), self._step):
                self._hidden.append((parameter, grad))
                parameter.grad = None

    def _after_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        for parameter, grad in self._hidden:
            parameter.grad = grad
        self._hidden.clear()
        self._flat.clear()


class _SGDSource(MomentumSource):
    def _momentum(
        self, parameter: Tensor, group: dict[str, Any]
    ) -> tuple[Tensor | None, float, float]:
        buffer = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
        factor = float(group["momentum"])
        if buffer is None or not factor:
            return None, 0.0, 1.0
        return local_part(buffer), factor, _sgd_gain(group)

    def _apply(self, key: Key, parameter: Tensor, grad: Tensor, step: int) -> bool:
        buffer, factor, gain = self._momentum(parameter, self._groups[id(parameter)])
        if buffer is not None:
            grad.sub_(buffer, alpha=factor)
            if gain != 1.0:
                grad.div_(gain)
        return True


def _sgd_gain(group: dict[str, Any]) -> float:
    gain = 1.0 - float(group["dampening"])
    return -gain if group.get("maximize") else gain


class _AdamSource(MomentumSource):
    def __init__(
        self, stage: SharedMomentum, optimizer: Optimizer, parameters: Mapping[str, Tensor]
    ) -> None:
        super().__init__(stage, optimizer, parameters)
        self._runs = {name: SignRuns() for name in parameters}

    def _sign_runs(self, piece: Piece, momentum: Tensor) -> memoryview | None:
        return self._runs[piece.key.name].of_piece(piece, momentum)

    def _momentum(
        self, parameter: Tensor, group: dict[str, Any]
    ) -> tuple[Tensor | None, float, float]:
        beta = float(group["betas"][0])
        gain = beta - 1.0 if group.get("maximize") else 1.0 - beta
        momentum = self._optimizer.state.get(parameter, {}).get("exp_avg")
        return None if momentum is None else local_part(momentum), beta, gain

    def _apply(self, key: Key, parameter: Tensor, grad: Tensor, step: int) -> bool:
        stage, group = self._stage, self._groups[id(parameter)]
        if not isinstance(stage, AdamMomentum):
            raise TypeError(f"{stage} is not of Adam")
        travels = stage.travels(key, step=step)
        gap = 1 if len(key.shape) <= 1 else stage.gap(step)
        if not travels and gap == 1:
            return True  # an ordinary step
        settings = AdamSettings.of(self._optimizer, group, block=row_block(key))
        state = AdamState.of(self._optimizer, parameter)
        own = local_part(parameter)
        if travels:
            settings.apply_momentum(own, grad, state, self._runs[key.name])
        else:
            settings.apply_gradient(own, grad, state, gap=gap)
        return False


def share_momentum(
    recipe: Recipe, optimizer: Optimizer | None, parameters: Mapping[str, Tensor]
) -> MomentumSource | None:
    """Let pushes carry the momentum of ``optimizer``, if the recipe says so; else do nothing.

    ``parameters`` are those that are compressed, by name. Raises ConfigError for an optimizer whose
    momentum is another one.
    """
    stage = shared_momentum(recipe.push_feedback)
    if optimizer is not None:
        before = getattr(optimizer, _ATTRIBUTE, None)
        if isinstance(before, MomentumSource):
            before.detach()
    if stage is None:
        return None
    if optimizer is None:
        raise ConfigError("this recipe sends the optimizer's momentum: pass optimizer=...")
    source = _kind_of_source(stage, optimizer)(stage, optimizer, parameters)
    setattr(optimizer, _ATTRIBUTE, source)
    return source


def _kind_of_source(stage: SharedMomentum, optimizer: Optimizer) -> type[MomentumSource]:
    kind = type(optimizer).__name__
    if isinstance(stage, SGDMomentum):
        if not isinstance(optimizer, torch.optim.SGD) or isinstance(optimizer, SGD):
            raise ConfigError(
                f"tw.momentum_sgd sends the momentum of a torch.optim.SGD, which {kind} does not "
                "have: leave the recipe out, and one that fits is chosen"
            )
        return _SGDSource
    if isinstance(stage, AdamMomentum):
        if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
            raise ConfigError(
                f"tw.adam sends the momentum of torch.optim.Adam or AdamW, which {kind} does not "
                "have: leave the recipe out, and one that fits is chosen"
            )
        for setting in ("amsgrad", "differentiable"):
            if any(group.get(setting) for group in optimizer.param_groups):
                raise ConfigError(f"tw.adam cannot be used with {setting}=True")
        return _AdamSource
    raise ConfigError(f"{stage} names no optimizer that is known here")


def check_synchronous_if_shared(recipe: Recipe, *, synchronous: bool) -> None:
    """Refuse to mix momentum of different versions.

    A push carries the momentum of the version that its gradient was computed on. If versions close
    without the pushes of all workers, or with those on older versions, their mean is the new
    momentum of neither.
    """
    if recipe.shares_momentum and not synchronous:
        raise ConfigError(
            "this recipe sends the optimizer's momentum, the same for all workers, which have it "
            "only at the same version: use it without quorum and staleness, or asynchronously "
            "tw.dgc, whose momentum is each worker's own"
        )
