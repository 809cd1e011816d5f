"""Which checkpoints a rank accepts."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from tests.distributed.launch import run
from tests.integrations.ranks import backward, data, loss_of, network, residuals
from thinwire.hooks.handle import Compression
from thinwire.integrations import rank_files


def compressed(steps: int) -> Compression:
    model = DistributedDataParallel(network())
    compression = tw.compress_ddp(model, tw.doublesqueeze(tw.OneBit()))
    for _, batch in zip(range(steps), data(), strict=False):
        backward(loss_of(model, batch))
    return compression


def save(folder: Path) -> None:
    rank_files.save(compressed(2), folder, rank=dist.get_rank())


def load(folder: Path) -> str:
    compression, rank = compressed(0), dist.get_rank()
    try:
        found = rank_files.load(compression, folder, rank=rank)
    except tw.ConfigError as error:
        return str(error)
    return f"{found}, {compression.steps} steps, {any(residuals(compression))}"


def load_each(folders: list[Path]) -> list[str]:
    return [load(folder) for folder in folders]


def test_states_of_another_number_of_ranks_load_if_they_are_complete(tmp_path: Path) -> None:
    both, half, none = tmp_path / "both", tmp_path / "half", tmp_path / "none"
    run(save, both, ranks=2)
    half.mkdir()
    shutil.copy(both / "thinwire_rank_0.pt", half)
    (found,) = run(load_each, [both, half, none], ranks=1)
    assert found[0] == "True, 2 steps, True"
    assert "those of all ranks" in found[1]
    assert found[2] == "False, 0 steps, False"


def test_a_file_that_holds_no_state_is_refused(tmp_path: Path) -> None:
    wrong: list[object] = [torch.zeros(3), {"rank 0 of 1": {"steps": 3}}, {}]
    folders = [tmp_path / str(number) for number in range(len(wrong))]
    for folder, value in zip(folders, wrong, strict=True):
        folder.mkdir()
        torch.save(value, folder / "thinwire_rank_0.pt")
    (found,) = run(load_each, folders, ranks=1)
    assert "a state is a Tensor, expected what state_dict() returned" in found[0]
    assert "the state of rank 0 of 1: no 'workers'" in found[1]
    assert "no states were given" in found[2]
