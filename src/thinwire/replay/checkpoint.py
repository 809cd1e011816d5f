"""``Checkpoint``: what ``thinwire replay`` reads and writes, weights, optimizer and version.

Files are loaded with ``weights_only=True``: no code in them is run. The network is not needed:
parameters are known by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire import optim
from thinwire.errors import ConfigError
from thinwire.files import replacing
from thinwire.optim.takeover import TAKEN

_KEYS = ("model", "optimizer", "version")
_SAVING = (
    'torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), '
    '"version": client.version}, FILE)'
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``model`` and ``optimizer`` are state dicts, as of ``version``."""

    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    version: int

    def apart_from(self, trained: Iterable[str]) -> list[str]:
        """The tensors that are not among these, nor tied to one of them."""
        memory = {self.model[name].untyped_storage().data_ptr() for name in trained}
        return [
            name
            for name, tensor in self.model.items()
            if tensor.untyped_storage().data_ptr() not in memory
        ]


def load_checkpoint(path: Path) -> Checkpoint:
    """Load a checkpoint. Raises ConfigError unless it was saved as replay needs it."""
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a wrong file makes torch raise errors of many kinds
        why = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{path}: cannot be loaded with weights_only=True: {why}") from error
    if not isinstance(content, dict) or not set(_KEYS) <= content.keys():
        raise ConfigError(f"{path}: is no checkpoint for replay; make one with {_SAVING}")
    model, state, version = (content[key] for key in _KEYS)
    if type(version) is not int or version < 0:
        raise ConfigError(f"{path}: version {version!r}, expected a whole number from 0")
    if not isinstance(model, dict) or not all(isinstance(x, Tensor) for x in model.values()):
        raise ConfigError(f'{path}: "model" is no state dict; make one with {_SAVING}')
    if not isinstance(state, dict) or not {"state", "param_groups"} <= state.keys():
        raise ConfigError(f'{path}: "optimizer" is no state dict; make one with {_SAVING}')
    return Checkpoint(dict(model), state, version)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write it whole, or leave what was there."""
    model = {name: tensor.detach() for name, tensor in checkpoint.model.items()}
    content = {"model": model, "optimizer": checkpoint.optimizer, "version": checkpoint.version}
    try:
        with replacing(path) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{path}: cannot be written: {error}") from error


def optimizer_class(name: str) -> type[Optimizer]:
    """The class of ``torch.optim.NAME`` or ``thinwire.optim.NAME``; nothing else is imported."""
    module, _, last = name.rpartition(".")
    modules: dict[str, object] = {"torch.optim": torch.optim, "thinwire.optim": optim}
    cls = getattr(modules.get(module), last, None)
    if not isinstance(cls, type) or not issubclass(cls, Optimizer) or cls in _UNFIT:
        raise ConfigError(
            f"optimizer {name!r}, expected torch.optim.NAME or thinwire.optim.NAME, such as "
            "torch.optim.SGD or thinwire.optim.LANS"
        )
    return optim.LANS if cls is optim.CLAN else cls  # CLAN is LANS that waits for gradients


_UNFIT = (Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
"""They want closures or sparse gradients, so that no worker can have used them."""


def make_optimizer(name: str, checkpoint: Checkpoint, trained: list[str]) -> Optimizer:
    """An optimizer of the checkpoint's tensors, with its settings and its state.

    ``trained`` are the names of the parameters that workers trained, in their order.
    """
    cls = optimizer_class(name)
    groups = checkpoint.optimizer["param_groups"]
    try:
        tensors = [[checkpoint.model[n] for n in names] for names in _members(groups, trained)]
        made = cls([{"params": group} for group in tensors], lr=float(groups[0]["lr"]))  # type: ignore[call-arg]
        settings = set(made.defaults)  # loading may add to them
        made.load_state_dict(checkpoint.optimizer)
    except (IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name} does not take the checkpoint's optimizer: {error}") from error
    if not _fits(made, settings, groups):
        raise ConfigError(
            f"{name} is not the optimizer of the checkpoint, whose groups have other settings: "
            "name that one, or use tw.replay_log in Python"
        )
    return made


def _members(groups: list[dict[str, Any]], trained: list[str]) -> list[list[str]]:
    """The names of the parameters of each group."""
    if all("param_names" in group for group in groups):
        return [list(group["param_names"]) for group in groups]
    if len(groups) == 1 and len(groups[0]["params"]) == len(trained):
        return [trained]
    raise ConfigError(
        "the checkpoint does not say which parameters are in which group of the optimizer: make "
        "it from net.named_parameters() (torch 2.6 or later), or use tw.replay_log in Python"
    )


_NOTES = {"params", "param_names", TAKEN, "initial_lr", "max_lr", "min_lr", "swa_lr"}
"""What groups hold beside settings of their optimizer: names, and notes of schedulers."""


def _fits(made: Optimizer, settings: set[str], groups: list[dict[str, Any]]) -> bool:
    """Whether they are of this class: torch takes the groups of any optimizer without an error.

    An older torch has saved fewer settings; loading gives those their defaults.
    """
    taken = any(TAKEN in group for group in groups)
    return (not taken or isinstance(made, torch.optim.SGD)) and all(
        saved.keys() - _NOTES <= settings <= loaded.keys()
        for saved, loaded in zip(groups, made.param_groups, strict=True)
    )
