"""examples/fsdp under torchrun: it learns, and goes on with other numbers of processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def train(folder: Path, *, processes: int, replicas: int) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = ["--replicas", str(replicas), "--steps", "250", "--width", "64", "--recipe", "bit"]
    done = subprocess.run(
        [
            *command,
            f"--nproc-per-node={processes}",
            "examples/fsdp/train.py",
            *options,
            f"--checkpoint={folder}",
        ],
        cwd=ROOT,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_learns_and_goes_on_with_other_numbers_of_processes(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    first = train(folder, processes=4, replicas=2)
    second = train(folder, processes=2, replicas=2)
    before, after = (
        re.findall(r"step (\d+): loss ([0-9.]+)", text)[-1] for text in (first, second)
    )
    assert (before[0], after[0]) == ("250", "500")
    assert float(after[1]) < float(before[1]) < 2.25
