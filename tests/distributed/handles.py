"""The handle of a trainer, its state as bytes or tensors, and distributed checkpoints of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_saver import save

from tests.distributed.training import RECIPES, Trainer, exchange_state
from thinwire.exchange.resharding import ExchangeState
from thinwire.hooks.handle import Compression
from thinwire.hooks.module_gradients import ModuleCompression


def handle(trainer: Trainer) -> Compression:
    assert trainer.compression is not None
    return trainer.compression


def module_handle(trainer: Trainer) -> ModuleCompression:
    assert isinstance(trainer.compression, ModuleCompression)
    return trainer.compression


def all_finite(trainer: Trainer) -> bool:
    """Whether no inf or nan is in any state."""
    exchange = exchange_state(trainer.compression)
    return all(
        bool(buffer.isfinite().all())
        for parameters in exchange.values()
        for state in parameters.values()
        for buffer in state.values()
    )


def states(trainer: Trainer) -> dict[str, bytes]:
    exchange = exchange_state(trainer.compression)
    return {
        f"{direction}/{name}/{key}": buffer.numpy().tobytes()
        for direction, parameters in exchange.items()
        for name, state in parameters.items()
        for key, buffer in state.items()
    }


def owed(states: list[ExchangeState], name: str, key: str) -> torch.Tensor:
    """What all ranks together owe for a parameter, in units of the mean."""
    workers = [state["push"][name][key].double() for state in states if state]
    total = torch.stack(workers).mean(0)
    if key != "residual":
        return total
    for state in states:
        for piece, buffers in state.get("pull", {}).items():
            if piece.partition("[")[0] == name and buffers:
                start = int(piece.partition("[")[2].partition(":")[0] or 0)
                part = buffers[key].double()
                total[start : start + part.numel()] += part
    return total


def save_distributed(name: str, folder: str, options: dict[str, Any]) -> ExchangeState:
    trainer = Trainer(RECIPES[name], **options)
    trainer.train(range(4))
    save({"compression": handle(trainer)}, checkpoint_id=folder)
    return exchange_state(trainer.compression)


def load_distributed(name: str, folder: str, options: dict[str, Any]) -> ExchangeState:
    trainer = Trainer(RECIPES[name], **options)
    handle(trainer).load_distributed(folder)
    assert handle(trainer).steps == 4
    return exchange_state(trainer.compression)
